"""The tables of docs/reliability.md, between two marker lines: what `make matrix`, `distros` and `pythons` found.

python tests/reliability/tables.py matrix|distributions|pythons|endings|… RESULTS.json docs/reliability.md

Results are ``{CELL: [outcome, date, why it was skipped or a note, commit]}``; those of older versions have no commit.
"""

from __future__ import annotations

import fcntl
import json
import sys
from pathlib import Path

from ezpz.files import write_whole

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))


def replace_block(path, name, text):
    """Put `text` between ``<!-- name: begin -->`` and ``<!-- name: end -->``.

    Raises:
        ValueError: The file has not both marker lines, in this order.
    """
    begin, end = (f"<!-- {name}: {word} -->" for word in ("begin", "end"))
    head, found, rest = path.read_text().partition(begin)
    _, found_too, tail = rest.partition(end)
    if not (found and found_too):
        raise ValueError(f"{path} lacks the lines {begin} and {end}")
    path.write_text(f"{head}{begin}\n\n{text}\n\n{end}{tail}")


def keep(path, cell, result):
    """Put the result of one cell among those of a file, which other processes may do at the same time."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = json.loads(path.read_text()) if path.exists() else {}
        found[cell] = result
        write_whole(path, json.dumps(found, indent=1))


def matrix(results):
    """The results of `make matrix`, ``{"FLAVOUR CASE": result}``, as Markdown."""
    from cases import CASES, stageable, why_not
    from stages import FLAVOURS

    cells = {f"{name} {case.id}" for case in CASES for name in FLAVOURS if stageable(case, name)}
    results = {cell: result for cell, result in results.items() if cell in cells}  # cases that are no more
    reasons = {}
    wide, narrow = [], []
    for case in sorted(CASES, key=_order):
        names = [name for name in FLAVOURS if stageable(case, name)]
        code = " or ".join(map(str, case.code if isinstance(case.code, tuple) else (case.code,)))
        head = f"| {case.number} | {_cell(case.name)} | {code.replace('-9', '137')} |"
        if len(names) == 1 and len(set(case.not_on.values())) == 1:
            narrow.append(f"{head} {_outcome(results, names[0], case)} |")
            continue
        row = [
            _outcome(results, name, case)
            if stageable(case, name)
            else f"({reasons.setdefault(why_not(case, name), len(reasons) + 1)})"
            for name in FLAVOURS
        ]
        wide.append(f"{head} {' | '.join(row)} |")
    lines = [
        f"{_when(results)}: {_ok(results)} of {len(cells)} ok.",
        "",
        f"| case | what happens | exit code | {' | '.join(FLAVOURS)} |",
        "|---|---|---|" + "---|" * len(FLAVOURS),
        *wide,
        "",
        "Not staged, because:",
        "",
        *(f"{number}. {reason}" for reason, number in reasons.items()),
        "",
        "The same on every flavour, and so run on one:",
        "",
        "| case | what happens | exit code | |",
        "|---|---|---|---|",
        *narrow,
    ]
    return "\n".join(lines)


def distributions(results):
    """The results of `make distros`, ``{"DISTRIBUTION ROW": result}``, as Markdown."""
    from distributions import OTHERS, Distribution, own_name

    names = dict.fromkeys((own_name(), *OTHERS))
    results = {cell: result for cell, result in results.items() if cell.partition(" ")[0] in names}
    rows = dict.fromkeys(cell.partition(" ")[2] for cell in results)  # in the order of the tests
    reasons = {}

    def shown(name, row):
        outcome, _, why, *_ = results.get(f"{name} {row}", ["not run", "", ""])
        return f"({reasons.setdefault(why, len(reasons) + 1)})" if outcome == "skipped" else outcome

    versions = {}
    for name in names:
        there = Distribution(name)
        if not there.problem():
            versions[name] = there.versions()
    lines = [f"| {row} | {' | '.join(shown(name, row) for name in names)} |" for row in rows]
    skipped = sum(outcome == "skipped" for outcome, *_ in results.values())
    return "\n".join([
        f"{_when(results)}: {_ok(results)} of {len(results) - skipped} ok.",
        "",
        f"| | {' | '.join(name.replace('-', ' ').capitalize() for name in names)} |",
        "|---|" + "---|" * len(names),
        *(
            f"| {part} | {' | '.join(versions.get(name, {}).get(part, '') for name in names)} |"
            for part in ("Python", "MPICH", "Open MPI")
        ),
        *lines,
        "",
        "Not run, because:",
        "",
        *(f"{number}. {reason}" for reason, number in reasons.items()),
    ])  # fmt: skip


def pythons(results):
    """The results of `make pythons`, ``{"VERSION ROW": result}``, as Markdown."""
    from pythons import Python, versions

    wanted = {version: Python(version) for version in versions()}
    results = {cell: result for cell, result in results.items() if cell.partition(" ")[0] in wanted}
    told = {version: ("", "") if there.problem() else there.told() for version, there in wanted.items()}
    reasons = {}

    def shown(version, row):
        outcome, _, why, *_ = results.get(f"{version} {row}", ["not run", "", ""])
        if outcome == "skipped":
            return f"({reasons.setdefault(why, len(reasons) + 1)})"
        return f"{outcome}: {why}" if why else outcome

    rows = dict.fromkeys(cell.partition(" ")[2] for cell in results)  # in the order of the tests
    skipped = sum(outcome == "skipped" for outcome, *_ in results.values())
    commits = " and ".join(dict.fromkeys(commit for *_, commit in results.values() if commit))
    return "\n".join([
        f"{_when(results)}, commit {commits or 'unknown'}: {_ok(results)} of {len(results) - skipped} ok.",
        "",
        f"| Python | {' | '.join(told[version][0] or version for version in wanted)} |",
        "|---|" + "---|" * len(wanted),
        f"| torch | {' | '.join(told[version][1] for version in wanted)} |",
        *(f"| {row} | {' | '.join(shown(version, row) for version in wanted)} |" for row in rows),
        *(["", "Not run, because:", ""] if reasons else []),
        *(f"{number}. {reason}" for reason, number in reasons.items()),
    ])  # fmt: skip


def endings(results):
    """The jobs of `make matrix` that end before their training, ``{"ROW / PROGRAM / NUMBER": result}``, as Markdown."""
    from endings import ENDINGS

    return _ends(results, ENDINGS)


def openpbs(results):
    """The same of the jobs of OpenPBS."""
    from openpbs_endings import ROWS

    return _ends(results, ROWS)


def _ends(results, rows):
    from endings import PROGRAMS

    planned = {(ending, name): ending.cells(name) for ending in rows for name in PROGRAMS}
    known = {cell for cells in planned.values() for cell in cells}
    results = {cell: result for cell, result in results.items() if cell in known and result[0] != "skipped"}

    def shown(ending, name):
        found = {cell: results[cell] for cell in planned[ending, name] if cell in results}
        return f"{_ok(found)} of {len(found)}" if found else "not run"

    commits = " and ".join(dict.fromkeys(commit for *_, commit in results.values()))
    again = sum(bool(note) for _, _, note, _ in results.values())
    head = f"{_when(results)}, commit {commits or 'unknown'}: {_ok(results)} of {len(results)} jobs ok"
    head += f", {again} of them staged more than once" if again else ""
    return "\n".join([
        f"{head}; a whole series has {len(known)}.",
        "",
        "| what happens | " + " | ".join(f"`{name}`" if name == "fsdp_tp" else name for name in PROGRAMS) + " |",
        "|---|" + "---|" * len(PROGRAMS),
        *(f"| {ending.name} | {' | '.join(shown(ending, name) for name in PROGRAMS)} |" for ending in rows),
    ])  # fmt: skip


def attempts(results):
    """The faults of `launch --attempts`, ``{"attempts / FLAVOUR / FAULT / NUMBER": result}``, as Markdown."""
    return _counted(results, "attempts", "fault")


def early(results):
    """What dies in its first seconds, ``{"early / FLAVOUR / WHAT / CASE": result}``, as Markdown."""
    return _counted(results, "early", "what is killed")


def cuts(results):
    """Connections that are cut, ``{"cuts / FLAVOUR / WHICH / CASE": result}``, as Markdown."""
    return _counted(results, "cuts", "which connection")


def shims(results):
    """Signals to shims and to what starts them, ``{"shims / FLAVOUR / SIGNALS / CASE": result}``, as Markdown."""
    return _counted(results, "shims", "signals")


def _counted(results, table, head):
    """How many of each row were right on each flavour, ``{"TABLE / FLAVOUR / ROW / …": result}``, as Markdown."""
    found = {}  # (row, flavour): its results
    for name, result in results.items():
        if name.startswith(f"{table} / ") and result[0] != "skipped":
            _, flavour, row, _ = name.split(" / ")
            found.setdefault((row, flavour), {})[name] = result
    flavours = dict.fromkeys(flavour for _, flavour in found)

    def shown(row, flavour):
        cells = found.get((row, flavour), {})
        return f"{_ok(cells)} of {len(cells)}" if cells else "not run"

    run = {}  # when, and with which commit: the flavours, and their results
    for flavour in flavours:
        own = {name: result for (_, each), cells in found.items() if each == flavour for name, result in cells.items()}
        commits = " and ".join(dict.fromkeys(commit for *_, commit in own.values()))
        names, results = run.setdefault(f"{_when(own)}, commit {commits or 'unknown'}", ([], {}))
        names.append(flavour)
        results |= own
    return "\n".join([
        "; ".join(
            f"{when}{f' ({names})' if len(run) > 1 else ''}: {_ok(cells)} of {len(cells)} right"
            for when, (each, cells) in run.items()
            for names in [", ".join(each)]
        )
        + ".",
        "",
        f"| {head} | {' | '.join(flavours)} |",
        "|---|" + "---|" * len(flavours),
        *(
            f"| {row} | {' | '.join(shown(row, flavour) for flavour in flavours)} |"
            for row in dict.fromkeys(row for row, _ in found)
        ),
    ])  # fmt: skip


def why(results):
    """Planted troubles and healthy launches, ``{"TROUBLE / WHERE": [verdict, date, first cause]}``, as Markdown."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "why"))
    from planted import PLANTED

    healthy = results.get("healthy")
    judged = {cell: found for cell, found in results.items() if cell.rpartition(" / ")[0] in PLANTED}
    right, wrong, unknown = (
        sum(found[0] == word for found in judged.values()) for word in ("right", "wrong", "unknown")
    )
    lines = ["Healthy launches: not run."]
    if healthy:
        ran, alarms, kinds = healthy[0].split("/")
        commit = f", commit {healthy[3]}" if healthy[3] else ""
        lines = [f"{healthy[1]}{commit}: {alarms} false alarms in {ran} healthy launches of {kinds} kinds."]

    def stood_first(name):
        cells = {cell: found for cell, found in judged.items() if cell.rpartition(" / ")[0] == name}
        others = [f"`{found[2]}`" if found[2] else "nothing" for found in cells.values() if found[0] != "right"]
        count = f"{len(cells) - len(others)} of {len(cells)}" if cells else "not run"
        return "; ".join([count, *others])

    misses = f"{right}, a wrong one in {wrong}, none in {unknown}: {2 * wrong + unknown} misses."
    return "\n".join([
        *lines,
        "",
        f"{_when(judged)}: of {len(judged)} planted troubles the right cause stood first in {misses}",
        "",
        "| what was planted | must stand first | did so |",
        "|---|---|---|",
        *(f"| {name} | `{cause}` | {stood_first(name)} |" for name, cause in PLANTED.items()),
    ])  # fmt: skip


def strangers(results):
    """Troubles that the rules were not written for, ``{NAME: [verdict, date, what lacks, commit]}``, as Markdown."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "why"))
    from strangers import VERDICTS, troubles

    known = troubles()
    results = {name: results[name] for name in known if name in results}
    commits = " and ".join(dict.fromkeys(commit for *_, commit in results.values() if commit))
    kinds = [*dict.fromkeys(each.about for each in known.values()), "all"]

    def counted(about):
        verdicts = [results[name][0] for name in results if about in {known[name].about, "all"}]
        return " | ".join(str(verdicts.count(verdict)) for verdict in VERDICTS)

    return "\n".join([
        f"{_when(results)}, commit {commits or 'unknown'}: {len(results)} of {len(known)} were planted.",
        "",
        f"| what a program did | {' | '.join(VERDICTS)} |",
        "|---|" + "---|" * len(VERDICTS),
        *(f"| {about} | {counted(about)} |" for about in kinds),
        "",
        "Not right:",
        "",
        "| trouble | | what the first cause lacks, or says wrongly |",
        "|---|---|---|",
        *(
            f"| {known[name].what} (`{name}`) | {verdict} | {_cell(reason)} |"
            for name, (verdict, _, reason, _) in results.items()
            if verdict != "right"
        ),
    ])  # fmt: skip


def _when(results):
    dates = sorted({date for _, date, *_ in results.values()})
    return " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else "never run"


def _ok(results):
    return sum(outcome == "ok" for outcome, *_ in results.values())


def _order(case):
    """By number; those with a letter last. The order of a number's cases is that of the table."""
    first = case.number.split(",")[0]
    return (int(first), "") if first.isdigit() else (1000, first)


def _cell(text):
    return text.replace("|", "\\|")


def _outcome(results, name, case):
    return results.get(f"{name} {case.id}", ["not run"])[0]


if __name__ == "__main__":
    tables = (matrix, distributions, pythons, endings, openpbs, attempts, early, cuts, shims, why, strangers)
    table = {each.__name__: each for each in tables}[sys.argv[1]]
    replace_block(Path(sys.argv[3]), sys.argv[1], table(json.loads(Path(sys.argv[2]).read_text())))
