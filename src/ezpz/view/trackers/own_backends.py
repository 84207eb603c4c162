"""Use a backend that an older script has written itself as a tracker.

class Mine(TrackerBackend): …
register_backend("mine", Mine)
History(backends="mine,csv")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.track.tracker_protocol import About
    from ezpz.track.values import Value

registered: dict[str, type] = {}
made: dict[str, Any] = {}  # by name, the latest that was started


class TrackerBackend:
    """What an older script's own backend inherits; `ezpz.track.Tracker` is what a new one answers."""

    name = "base"

    def log(self, metrics: dict[str, Any], step: int | None = None, commit: bool = True) -> None:
        """Take one row."""

    def log_config(self, config: dict[str, Any]) -> None:
        """Take a configuration, or more of it."""

    def finish(self) -> None:
        """End."""


def register_backend(name: str, cls: type) -> None:
    """Let ``History(backends=…)`` know a backend.

    Raises:
        UsageError: It lacks a call that is made.
    """
    missing = [call for call in ("log", "log_config", "finish") if not callable(getattr(cls, call, None))]
    if missing:
        raise UsageError(f"no backend: {cls.__name__} without {' and '.join(missing)} (from register_backend).")
    registered[name] = cls


def adapted(name: str) -> Adapted:
    """Return a registered backend as a tracker."""
    return Adapted(name, registered[name])


class Adapted:
    """A tracker that calls such a backend, from one thread, on rank 0."""

    def __init__(self, name: str, cls: type) -> None:
        self.name, self._cls = name, cls
        self._backend: Any = None

    def start(self, about: About) -> dict[str, object]:
        """Make the backend, with what of the run its constructor takes."""
        import inspect

        given = {"project_name": about.name, "config": dict(about.config), "outdir": about.folder, "rank": 0}
        try:
            known = inspect.signature(self._cls).parameters
        except (TypeError, ValueError):  # of a class that is not Python's
            known = {}  # type: ignore[assignment]  # as good as no parameter
        takes_all = any(each.kind is each.VAR_KEYWORD for each in known.values())
        self._backend = self._cls(**{key: value for key, value in given.items() if takes_all or key in known})
        made[self.name] = self._backend
        if about.config:
            self._backend.log_config(dict(about.config))
        return {}

    def log(self, step: int, values: Mapping[str, Value]) -> None:
        """Pass a row on."""
        self._backend.log(dict(values), step=step)

    def config(self, config: Mapping[str, object]) -> None:
        """Pass a configuration on."""
        self._backend.log_config(dict(config))

    def finish(self, state: str) -> None:  # noqa: ARG002  # older backends do not take it
        """End it."""
        self._backend.finish()
