"""The judge of planted troubles, their table, and two of them in real launches; `make matrix` plants all."""

import re

import pytest
import strangers
from strangers import Check, judge

KNOWN = strangers.troubles()
LOCK = Check(who=1, says=["{here}"], ideally=["lock"], step=[4, 5], code=124)
HERE = {"here": "train.py:16", "port": "4711"}


def cause(text, kind="collective-missing", **more):
    return {"cause": kind, "text": text, "rank": None, "host": None, "step": None, "evidence": [], "try": None, **more}


IN_LOCK = cause("rank 1 waits for a lock at train.py:16, and never came to all_reduce", rank=1, step=5)
VICTIM = cause("rank 0 raised RuntimeError: Connection closed by peer", "exception", rank=0)
SEVERAL = Check(who="several", says=["recv"], never=["other-sizes"])


@pytest.mark.parametrize(
    ("check", "causes", "code", "verdict", "reason"),
    [
        (LOCK, [IN_LOCK], 124, "right", ""),
        (LOCK, [{**IN_LOCK, "step": 1}], 1, "partly", "step 1, exit code 1"),
        (LOCK, [cause("rank 1 is at train.py:16", rank=1, step=5)], 124, "partly", 'no "lock"'),
        (LOCK, [cause("rank 1 is at train.py:160", rank=1, step=5)], 124, "partly", 'no "{here}"'),
        (LOCK, [cause("rank 1 is elsewhere", rank=1, step=5)], 124, "partly", 'no "{here}"'),
        (LOCK, [{**IN_LOCK, "rank": None}], 124, "right", ""),  # its sentence names it
        (LOCK, [VICTIM, IN_LOCK], 124, "wrong", "it blames rank 0"),
        (LOCK, [cause("ranks 1 and 2 are at train.py:16")], 124, "wrong", "it blames no rank alone"),
        (LOCK, [cause("rank 1 is elsewhere", rank=1), IN_LOCK], 124, "partly", "it stands as number 2"),
        (LOCK, [], 124, "silent", "nothing was said"),
        (Check(who=1, says=["slow"], silence=True), [], None, "right", ""),
        (Check(who=1, says=["slow"], silence=True), [VICTIM], None, "wrong", "it blames rank 0"),
        (Check(who="nobody", silence=True), [VICTIM], None, "wrong", "it blames rank 0"),
        (Check(who=[2, 3], says=["SIGILL"]), [cause("rank 3 crashed with SIGILL", rank=3)], None, "right", ""),
        (Check(who="n03"), [cause("host n03 is lost")], None, "right", ""),
        (Check(who="n03"), [cause("rank 2 is slow", rank=2, host="n03")], None, "right", ""),
        (Check(who="n03"), [cause("host n030 is lost", host="n030")], None, "wrong", "it blames n030"),
        (Check(who=0, says=[r"(?i)\bcores?\b|seat 1\.7"]), [VICTIM], None, "partly", 'no "cores?" or "seat 1.7"'),
        (SEVERAL, [cause("each rank waits in recv")], None, "right", ""),
        (SEVERAL, [cause("ranks 0 and 1 wait in recv", "other-sizes")], None, "wrong", "it says other-sizes"),
        (SEVERAL, [cause("a host was lost")], None, "wrong", 'no "recv"'),  # nothing of it is about this trouble
        (SEVERAL, [cause("rank 0 waits in recv", rank=0)], None, "wrong", "it blames rank 0"),
        (Check(who="any", says=["{port}", "in use"]), [cause("port 4711 is closed")], None, "partly", 'no "in use"'),
        (Check(who=1, shows=["seat 17"]), [cause("rank 1 ended", rank=1, evidence=["no seat 17"])], None, "right", ""),
        (Check(who=1, says=["seat 17"]), [cause("rank 1 ended", rank=1, evidence=["seat 17"])], None, "partly", None),
    ],
)  # fmt: skip
def test_an_answer_is_right_partly_right_wrong_or_silent(check, causes, code, verdict, reason):
    found = judge(check, causes, code=code, known=HERE)
    assert found[0] == verdict
    assert reason is None or found[1] == reason


@pytest.mark.parametrize(
    ("check", "seen", "verdict"),
    [
        (LOCK, ["not over within 8 s: rank 1 on n01 in take (train.py:16)", "a note"], "partly"),
        (LOCK, ["not over within 8 s: rank 2 on n01 in take (train.py:16)"], "silent"),
        (LOCK, ["not over within 8 s: rank 1 on n01 sleeping"], "silent"),
        (SEVERAL, ["not over within 8 s: 2 ranks in recv (train.py:16)"], "partly"),
        (Check(who="n03", says=["slow"]), ["n03 is slow"], "partly"),
        (Check(who="n03", says=["slow"]), ["n02 is slow"], "silent"),
        (Check(who="any", says=["slow"]), [], "silent"),
    ],
)
def test_what_was_seen_is_no_cause_and_better_than_silence(check, seen, verdict):
    assert judge(check, [], seen=seen, known=HERE)[0] == verdict


def test_every_check_has_a_program_and_can_fail():
    assert len(KNOWN) == 98
    for trouble in KNOWN.values():
        check = trouble.check
        patterns = [*check.says, *check.shows, *check.never, *check.ideally]
        for each in patterns:
            re.compile(each)
        assert "{here}" not in " ".join(patterns) or trouble.place(), trouble.name
        assert check.who == "nobody" or check.says or check.shows, trouble.name
        names = [f"n{number:02}" for number in range(1, trouble.hosts + 1)]
        assert not isinstance(check.who, str) or check.who in {"any", "several", "nobody", *names}, trouble.name
        assert {check.who} <= {*range(trouble.ranks)} if isinstance(check.who, int) else True, trouble.name
        compile(trouble.lines(), trouble.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bad-json-config", "disk-quota-words"])
def test_what_is_planted_is_judged(tmp_path, name):
    strangers.plant(KNOWN[name], tmp_path / name)
    result = strangers.judged(KNOWN[name], tmp_path / name)
    assert (result.verdict, result.reason) == ("right", ""), result
    assert result.seconds >= 0


def test_the_page_counts_the_verdicts_and_names_what_is_not_right():
    from reliability import tables

    found = {name: ["right", "2026-11-29", "", "abc1234"] for name in KNOWN}
    found["lock-twice"] = ["partly", "2026-11-29", "no a|b", "abc1234"]
    found["gone"] = ["wrong", "2026-11-29", "", "abc1234"]  # of a trouble that is no more
    text = tables.strangers(found)
    assert text.startswith("2026-11-29, commit abc1234: 98 of 98 were planted.\n")
    assert "\n| all | 97 | 1 | 0 | 0 |\n" in text
    assert text.endswith("| a lock that a rank takes twice (`lock-twice`) | partly | no a\\|b |")
