"""Every verb that takes a run, on every kind of run: what they say is true, and no two contradict each other.

Verbs run in forks of this process. ``EZPZ_VERBS=docs/verbs.md`` writes what each has said into that page
(`make verbs`); without it the page is compared.
"""

import csv
import json
import os
import re
import shlex
import uuid
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import pytest

from cli.in_fork import run_verb
from cli.kinds_of_runs import STEPS, end_all, make_kinds
from ezpz.cli.runs import _STATES
from ezpz.verbs import VERBS
from lab.checkout import ROOT
from lab.completion import parser_of
from reliability.tables import replace_block

pytestmark = pytest.mark.slow
PAGE = ROOT / "docs" / "verbs.md"
# What is typed, RUN for the run; and which part of the output is its answer: the first line, or the paragraph behind
# so many lines of titles.
TYPED = {  # kill is the last, as it ends what runs
    "ezpz why RUN": 0,
    "ezpz runs RUN": 1,
    "ezpz runs --goodput RUN": None,
    "ezpz status RUN": 1,
    "ezpz logs RUN": None,
    "ezpz watch --once RUN": 0,
    "ezpz plot RUN": None,
    "ezpz open --path RUN": None,
    "ezpz report RUN": None,
    "ezpz export RUN": None,
    "ezpz export --csv RUN": None,
    "ezpz compare RUN OTHER": 0,
    "ezpz startup RUN": None,
    "ezpz stacks RUN": None,
    "ezpz checkpoint verify RUN": None,
    "ezpz kill RUN": None,
}
# As a program reads the answer; the table shows no such.
FOR_PROGRAMS = (
    "ezpz why --json RUN",
    "ezpz runs --json RUN",
    "ezpz status --json RUN",
    "ezpz runs --goodput --json RUN",
)
CODES = {0, 1, 2, 125}
ID = "5f3a90c2d1e84b70"  # in place of every launch's
NOTHING = "no job and no launch of yours waits, runs or ended within a day"  # of `ezpz status`
HEAVY = (  # what verbs import when they run: once, in front of all forks
    *("ezpz.view.report", "ezpz.track.dataset", "ezpz.view.terminal.runplot", "ezpz.view.terminal.frame"),
    *(
        "ezpz.view.terminal.follow",
        "ezpz.view.compare.comparison",
        "ezpz.view.compare.comparison_output",
        "ezpz.jobs.goodput",
    ),
    *("ezpz.view.foreign.opening", "ezpz.launch.host.process_tree"),
)
# A run died where its launch failed, was lost, or has ended and could not say why.
ALIKE = {"failed": "died", "lost": "died", "ended": "died"}


class Cell:
    """What a verb has said of a kind of run, when that was named in one way: ``path``, ``name``, or not at all."""

    def __init__(self, kind, typed, way, word, other):
        places = {} if way == "nothing" else {"RUN": word, "OTHER": str(other)}
        words = [places.get(each, each) for each in shlex.split(typed)[1:] if places or each not in {"RUN", "OTHER"}]
        self.kind, self.typed, self.way, self.word = kind, typed, way, word
        self.line = shlex.join(["ezpz", *words])
        self.ended = run_verb(words, environ=kind.env, folder=kind.folder)

    def __repr__(self):
        return f"{self.kind.name}: {self.line} -> {self.ended.code}\n{self.ended.out}{self.ended.err}"

    def json(self):
        return json.loads(self.ended.out) if self.ended.code == 0 else None

    def answer(self):
        """Return the part of the output that answers, without what is another one each time."""
        lines = (self.ended.out if self.ended.out.strip() else self.ended.err).splitlines()
        if lines[0].startswith("of launch "):  # what another test on this machine has left stands where nothing would
            lines = [NOTHING]
        lines = [line for line in lines if " was asked " not in line]  # the last one of `ezpz status`
        titles = TYPED[self.typed] if self.ended.out.strip() else None
        if titles is not None and len(lines) > 1:
            lines = [" ".join(map(str.strip, takewhile(str.strip, lines[titles:])))]
        return same_each_time(lines[0], self.kind)


def same_each_time(text, kind):
    """Put fixed words in the place of paths, times, numbers of processes and names of hosts."""
    if len(kind.launch) == len(ID):
        for length in (12, 8):
            text = re.sub(rf"{kind.launch[:length]}(?![0-9a-f])", ID[:length], text)
    root = str(kind.folder.parent)
    for place, shown in ((str(kind.home), "/home/me"), (str(kind.folder), "/work"), (f"{root}/finished", "/other")):
        text = text.replace(place, shown)
    text = re.sub(rf"\b{re.escape(os.uname().nodename)}\b", "n01", text)
    for pattern, shown in (
        (r"\b[0-9a-f]{16}\b", ID),
        (r"\b20\d\d-\d\d-\d\d-\d{6}\b", "2026-11-20-162001"),
        (r"\b20\d\d-\d\d-\d\d\b(?!-)", "2026-11-20"),
        (r"\b\d\d:\d\d:\d\d\b", "16:20:01"),
        (r"\bpid \d+", "pid 4711"),
        (r"(?<=127\.0\.0\.1:)\d+", "29500"),
        (r" \(not by launch[^)]*\)", " (not by launch)"),
        (r"(?<=rank 0 on n01 ).*(?=, rank 1|$)", "…") if "rank 1 on" in text else (r"\Z", ""),
        (r"(?<=rank 1 on n01 ).*", "…"),
        (r"(?<![\w.])[\d.,]+k? (it|rows)/s", r"100 \1/s"),
        (r"(?<![\w.])[\d.,]+ (h [\d.]+ min|min [\d.]+ s|ms|s|min|h)(?!\w)", "1 s"),
        (r"(?<![\w.])[\d.,]+ %", "1 %"),
        (r" {2,}", "  "),
    ):
        text = re.sub(pattern, shown, text)
    return text.strip()


def name_of(kind):
    """Return the run as `ezpz runs` prints it; of a launch without one its id."""
    if kind.run is None or not (kind.run / "metrics.jsonl").is_file():
        return kind.launch
    listed = run_verb(["runs"], environ=kind.env, folder=kind.folder)
    assert listed.code == 0, listed.err
    return re.split(r"\s{2,}", listed.out.split("\n")[1].strip())[-1]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    made = {}
    try:
        make_kinds(tmp_path_factory.mktemp("every"), f"ezt-{uuid.uuid4().hex[:12]}", made)
        yield made
    finally:
        end_all(made)


@pytest.fixture(scope="module")
def cells(kinds):
    """Every verb, on every kind, named in every way."""
    for module in (*(VERBS[typed.split()[1]][0] for typed in TYPED), *HEAVY):
        import_module(module)
    found = []
    other = kinds["finished"].run
    for kind in kinds.values():
        name = name_of(kind)
        ways = [("path", str(kind.run or kind.folder)), ("nothing", None), *([("name", name)] if name else [])]
        typed = [*(FOR_PROGRAMS if kind.state else ()), *TYPED]
        found += [
            Cell(kind, each, way, word, other)
            for each in typed
            for way, word in ways
            if not (each in FOR_PROGRAMS and way == "name")  # that it is the same run, the others show
            and not (each == "ezpz kill RUN" and kind.name == "running" and way == "path")  # it is ended but once
        ]
    return found


def test_no_verb_that_takes_a_run_is_left_out():
    takes = set()
    for verb in VERBS:
        for action in parser_of(verb)._actions:  # argparse has no other way to ask
            metavar = action.metavar if isinstance(action.metavar, str) else ""
            if not action.option_strings and {"RUN", "ID", "ROOT"} & set(metavar.split("|")):
                takes.add(verb)
    assert takes == {typed.split()[1] for typed in TYPED}


def test_every_verb_answers_with_a_word_and_a_code_that_is_documented(cells):
    assert [cell for cell in cells if "Traceback" in cell.ended.err] == []
    assert [cell for cell in cells if not (cell.ended.out + cell.ended.err).strip()] == []
    assert [cell for cell in cells if cell.ended.code not in CODES] == []


def test_a_run_is_the_same_by_its_path_and_by_the_name_that_runs_prints(cells):
    by_path = {(cell.kind.name, cell.typed): cell for cell in cells if cell.way == "path" and cell.kind.run}
    by_name = {(cell.kind.name, cell.typed): cell for cell in cells if cell.way == "name" and cell.typed in TYPED}
    both = [(by_path[key], by_name[key]) for key in by_name if key in by_path]
    assert [pair for pair in both if pair[0].ended.code != pair[1].ended.code] == []
    # `ezpz runs` names it below what was named.
    answers = [pair for pair in both if pair[0].ended.code == 0 and pair[0].typed != "ezpz runs RUN"]
    assert answers
    assert [pair for pair in answers if pair[0].answer() != pair[1].answer()] == []


def said_states(cells):
    """Yield what each verb has said became of a run, as (kind, what said it, state)."""
    for cell in cells:
        found = cell.json() if cell.typed in FOR_PROGRAMS else None
        if cell.typed == "ezpz runs --json RUN":
            found = found[0] if found else None
        if cell.typed == "ezpz status --json RUN":
            found = next(iter(found["rows"]), None) if found else None
        if found and "state" in found:
            yield cell, found["state"]
        if cell.ended.code == 0 and cell.typed == "ezpz plot RUN":
            yield cell, re.match(r"\S+: (\w+)", cell.ended.out)[1]
        if cell.ended.code == 0 and cell.typed == "ezpz watch --once RUN":
            told = re.search(rf"^\S+: ({'|'.join(_STATES)})\b", cell.ended.out, re.MULTILINE)
            yield cell, told[1] if told else "running"
        if cell.ended.code == 0 and cell.typed == "ezpz report RUN":
            page = Path(cell.ended.out.strip()).read_text(encoding="utf-8")
            yield cell, re.search(r'<span class="state (\w+)', page)[1]
        if cell.typed == "ezpz compare RUN OTHER" and cell.way == "path" and cell.ended.out:
            yield cell, re.search(r"^A  .*  (\w+), ", cell.ended.out, re.MULTILINE)[1]


def test_verbs_agree_about_what_became_of_a_run(cells):
    said = [(cell, state, cell.kind.state) for cell, state in said_states(cells) if cell.kind.state]
    assert len(said) > 100
    assert [each for each in said if ALIKE.get(each[1], each[1]) != ALIKE.get(each[2], each[2])] == []


def last_steps(cells):
    """Yield the last step of a run that each verb tells."""
    for cell in cells:
        if cell.ended.code or not cell.kind.state:
            continue
        if cell.typed == "ezpz runs --json RUN":
            yield cell, cell.json()[0]["last_step"]
        elif cell.typed == "ezpz status --json RUN":
            # It counts steps, which begin with 0.
            yield from ((cell, row["step"] - 1) for row in cell.json()["rows"] if row["run_folder"])
        elif cell.typed in {"ezpz plot RUN", "ezpz watch --once RUN"}:
            yield cell, int(re.search(r"\bsteps? (?:\d+ to )?(\d+)", cell.ended.out)[1])
        elif cell.typed == "ezpz export --csv RUN":
            with Path(cell.ended.out.strip()).open(newline="", encoding="utf-8") as file:
                yield cell, int(list(csv.DictReader(file))[-1]["step"])


def test_verbs_agree_about_the_last_step(cells):
    told = list(last_steps(cells))
    assert len(told) > 100
    assert [(cell, step) for cell, step in told if step != (4 if cell.kind.name == "torn-journal" else STEPS - 1)] == []


def test_verbs_mean_the_same_folder(cells):
    keys = {
        "ezpz runs --json RUN": lambda told: [told[0]["folder"]],
        "ezpz why --json RUN": lambda told: [told["run"]],
        "ezpz status --json RUN": lambda told: [row["run_folder"] for row in told["rows"]],
        "ezpz runs --goodput --json RUN": lambda told: told["folders"],
    }
    told = [cell for cell in cells if cell.typed in keys and cell.ended.code == 0 and cell.kind.run]
    meant = [(cell, folder) for cell in told for folder in keys[cell.typed](cell.json()) if folder]
    assert len(meant) > 50
    assert [(cell, folder) for cell, folder in meant if folder != str(cell.kind.run)] == []


WHY = {  # kind: what `ezpz why` must not say, and must
    "alone": ("I do not know", "nothing stands out"),
    "alone-failed": ("I do not know", "it ended with ValueError: my bug"),
    "alone-killed": ("it runs", "its process is gone"),
    "copied-killed": ("it runs", "its process is gone"),
    "broken-run-json": ("without `launch`", "missing or damaged, so how it ended is not known"),
    "running": ("I do not know", "it runs, and nothing stands out"),
}


def test_why_says_what_is_known_of_a_run_without_a_launch(cells):
    said = [(cell, " ".join(cell.ended.out.split())) for cell in cells if cell.typed == "ezpz why RUN"]
    told = [(cell, text, *WHY[cell.kind.name]) for cell, text in said if cell.kind.name in WHY]
    assert len(told) == 3 * len(WHY)
    assert [cell for cell, text, never, always in told if never in text or always not in text] == []


def test_what_a_verb_says_to_type_next_works(cells):
    typed = {}
    for cell in cells:
        for line in re.findall(r"`ezpz ((?:why|open|plot|compare|logs) [^`]+)`", cell.ended.out + cell.ended.err):
            if not re.search(r"\b[A-Z]{2,}\b", line):
                typed.setdefault((cell.kind.name, line), cell)
    assert typed
    tried = [(cell, run_verb(shlex.split(line), environ=cell.kind.env, folder=cell.kind.folder))
             for (_, line), cell in typed.items()]  # fmt: skip
    assert [(cell, ended.err) for cell, ended in tried if ended.code not in {0, 1}] == []


def table(kinds, cells):
    """Return what every verb says of every kind, as Markdown; verbs that say the same share a row."""
    lines = []
    for kind in kinds.values():
        lines += [
            "",
            f"## {kind.title[0].upper()}{kind.title[1:]}",
            "",
            "| you type | code | it says |",
            "|---|---|---|",
        ]
        of_kind = {(cell.typed, cell.way): cell for cell in cells if cell.kind is kind}
        rows = {}
        for typed in TYPED:
            named = next(
                of_kind[typed, way] for way in ("path", "name") if (typed, way) in of_kind and _fits(kind, way)
            )
            without = of_kind[typed, "nothing"]
            rows.setdefault((named.ended.code, named.answer()), []).append(typed)
            if (named.ended.code, named.answer()) != (without.ended.code, without.answer()):
                line = re.sub(r" (RUN|OTHER)", "", typed)
                rows.setdefault((without.ended.code, without.answer()), []).append(line)
        for (code, text), words in rows.items():
            shown = text.replace("|", "\\|")
            lines.append(f"| {', '.join(f'`{each}`' for each in words)} | {code} | `` {shown} `` |")
    return "\n".join(lines[1:])


def _fits(kind, way):
    """Tell whether a way of naming is that of a kind: what has no folder is named by its id."""
    return way == "name" or kind.run is not None or not kind.launch


def test_the_page_shows_what_verbs_say(kinds, cells):
    page = os.environ.get("EZPZ_VERBS")
    if page:
        replace_block(Path(page), "verbs", table(kinds, cells))
        return
    shown = (
        PAGE.read_text(encoding="utf-8").partition("<!-- verbs: begin -->\n\n")[2].partition("\n\n<!-- verbs: end")[0]
    )
    assert shown.split("\n") == table(kinds, cells).split("\n"), "`make verbs` writes it"
