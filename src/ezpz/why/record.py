"""Read the record of a launch, which another user, another version or a crash may have left: a field that holds
something else than `ezpz.launch.record` writes there is as if it were missing, so that no reader has to ask.
"""

from __future__ import annotations

from ezpz.files import drop_misfits, read_object

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import os
    from typing import Any

    from ezpz.files import Shape

__all__ = ["COLLECTIVES", "as_answer", "as_launch", "read_collectives", "read_launch"]

COLLECTIVES = "collectives.json"  # in the launch's folder: the last collectives of every rank (docs/why.md)

_TEXT, _WHOLE, _NUMBER, _LIST = (str,), (int,), (int, float), (list,)
_LATEST = 253402300800.0  # epoch seconds: the year 10000
_MOST_RANKS = 10_000_000


def _is_time(value: Any) -> bool:
    return type(value) in {int, float} and 0 <= value < _LATEST


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST_RANKS


def _named(names: str, shape: Any) -> Shape:
    return dict.fromkeys(names.split(), shape)


_ROOM: Shape = {"!": ("path", "free", "size"), "path": _TEXT, **_named("free size files", _NUMBER)}
_KERNEL: Shape = {"group": _TEXT, **_named("oom_kill host_oom_kill", _LIST), **_named("limit peak", _NUMBER)}
_FAILURE: Shape = {
    **_named("text host signal log words why", _TEXT),
    **_named("rank pid code step", _WHOLE),
    "kernel": _KERNEL,
    "room": [_ROOM],
}
_ASKED: Shape = {
    "summary": _TEXT,
    **_named("at apart", _NUMBER),
    "ranks": [{"!": ("rank",), "rank": _WHOLE, "frames": _LIST, **_named("host where", _TEXT)}],
}
_GROUP: Shape = {
    "!": ("group", "rank", "n", "size", "last", "lag", "step", "wait", "batches"),
    "group": _TEXT,
    **_named("rank n size", _WHOLE),
    **_named("last lag step wait", _NUMBER),
    "batches": [_NUMBER],
}
_SHARES: Shape = {"where": _TEXT, "*": _NUMBER}
_ATTEMPT: Shape = {
    **_named("launch_id state decision because run_folder host", _TEXT),
    **_named("attempt exit_code", _WHOLE),
    **_named("started ended", _is_time),
    "hosts": [_TEXT],
    "cause": _FAILURE,
}
_LAUNCH: Shape = {
    **_ATTEMPT,
    **_named("cwd output verdict launcher_words", _TEXT),
    **_named("schema step most_attempts", _WHOLE),
    **_named("seconds ends_within", _NUMBER),
    **_named("job_ends job_started", _is_time),
    **_named("command silent lost notes", [_TEXT]),
    "plan": {
        **_named("flavour line scheduler job_id", _TEXT),
        "world_size": _is_count,
        "hosts": [_TEXT],
        "ranks_per_host": [_is_count],
    },
    "stages": {"*": {"slowest_host": _TEXT, **_named("min median max", _NUMBER), "by_rank": _LIST}},
    "failures": [_FAILURE],
    "hang": {**_ASKED, "earlier": _ASKED},
    "causes": [{"!": ("cause", "certainty"), "certainty": _WHOLE, **_named("cause text", _TEXT)}],
    "attempts": [_ATTEMPT],
    "chain": _named("folder job", _TEXT),
    "arrivals": {
        "source": _TEXT,
        "windows": [{"!": ("s", "groups"), "s": _NUMBER, "groups": [_GROUP]}],
        "ranks": {"*": _SHARES},
        "others": _SHARES,
    },
    "hardware": {"hosts": {"*": {"devices": {"*": {"clock": [_NUMBER]}}}}},
}
_COLLECTIVES: Shape = {
    "launch_id": _TEXT,
    "ranks": [
        {
            "!": ("rank",),
            **_named("rank step", _WHOLE),
            **_named("at state raised where", _TEXT),
            "entries": [
                {
                    "!": ("group", "seq", "op", "state", "created"),
                    "seq": _WHOLE,
                    "created": _NUMBER,
                    **_named("group op state line", _TEXT),
                }
            ],
        }
    ],
}


def read_launch(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields of a launch's ``run.json``; empty when it is missing, broken or none."""
    return read_object(path, _LAUNCH)


def as_launch(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields that were read elsewhere as `read_launch` returns them."""
    drop_misfits(fields, _LAUNCH)
    return fields


def read_collectives(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what ``collectives.json`` says; empty when it is missing, broken or none."""
    return read_object(path, _COLLECTIVES)


def as_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what the ranks of a launch on another host have answered, without what no launch answers."""
    drop_misfits(answer, {**_ASKED, "collectives": _COLLECTIVES})
    return answer
