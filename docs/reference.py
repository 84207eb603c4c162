"""Make the reference pages of the site from the parsers, the docstrings and the pages themselves."""

import inspect
import re
from importlib import import_module
from pathlib import Path

from check_pages import parser_of  # beside this file

from ezpz.cli import GROUPS
from ezpz.verbs import VERBS

PACKAGES = ("ezpz", "ezpz.train", "ezpz.checkpoint", "ezpz.models", "ezpz.cluster")
EVERYWHERE = {  # exit codes that mean the same in `launch`, in every verb and in the functions of the shell
    "0": "all went well",
    "the program's own": "of the rank that failed first",
    "128+n": "signal n ended it: 130 after Ctrl-C, 137 after SIGKILL",
    "2": "the command line or a file that it names is wrong; nothing was started",
    "124": "a time limit ended a run that had started",
    "125": "the machine, the launcher, or ranks that do not form the planned world",
    "126": "the command cannot be executed",
    "127": "the command was not found",
}


def write(folder):
    """Write the pages of the reference into a folder; what is equal already keeps its time, what is old goes."""
    folder.mkdir(exist_ok=True)
    pages = {"index": index(), "verbs": verbs(), "python": python()}
    pages["exit-codes"] = exit_codes()
    pages["examples"] = examples(folder.parents[1] / "examples" / "README.md")
    for path in folder.glob("*.md"):
        if path.stem not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def index():
    """Return the page that leads to the others."""
    lines = ["# Reference", "", "These pages are made from the program itself, so they fit this version.", ""]
    lines += ["- [Verbs and options](verbs.md): the help of each, with its exit codes"]
    lines += ["- [Python](python.md): public names, with their arguments"]
    lines += ["- [Exit codes](exit-codes.md): of `launch` and of every verb"]
    lines += ["- [Environment variables](../variables.md): what each does, and its default", ""]
    lines += ["| to do this | verb |", "|---|---|"]
    for title, names in GROUPS.items():
        for verb in names:
            lines.append(f"| {title}: {VERBS[verb][1]} | [`ezpz {verb}`](verbs.md#ezpz-{verb}) |")
    return "\n".join([*lines, "", "Files that ezpz reads and writes: [files](../files.md).", ""])


def help_of(verb):
    """Return the help of a verb as it is printed."""
    return parser_of(verb).format_help()


def verbs():
    """Return the page of all verbs."""
    lines = ["# Verbs and options", "", "`ezpz VERB --help` prints these; `launch` is `ezpz launch`.", ""]
    pages = pages_by_title()
    for names in GROUPS.values():
        for verb in names:
            title = VERBS[verb][2]
            lines += [f"## ezpz {verb}", "", "```text", help_of(verb).rstrip(), "```", ""]
            lines += [f"More: [{title}](../{pages[title]})", ""]
    return "\n".join(lines)


def pages_by_title():
    """Return the names of the pages that people have written, by their titles."""
    paths = Path(__file__).parent.glob("*.md")
    return {path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# "): path.name for path in paths}


def exit_codes():
    """Return the page of exit codes: what each means for each verb, as its help says it."""
    lines = ["# Exit codes", "", "These hold everywhere. Among several failures of a run, the earliest counts.", ""]
    lines += ["| exit code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EVERYWHERE.items()]
    lines += ["", "What ends a run, and with which code: [runs](../runs.md#how-a-run-ends). What each verb adds:", ""]
    lines += ["| verb | exit code | meaning |", "|---|---|---|"]
    for verb in (verb for names in GROUPS.values() for verb in names):
        text = help_of(verb).partition("\nexit code:\n")[2].partition("\n\n")[0]
        name = f"[`ezpz {verb}`](verbs.md#ezpz-{verb})"
        for row in re.sub(r"\n {9,}", " ", text).splitlines():
            code, _, meaning = re.sub(r"\s{2,}", "\t", row.strip()).partition("\t")
            lines.append(f"| {name} | {code} | {meaning} |")
            name = ""
    return "\n".join([*lines, ""])


def python():
    """Return the page of public names: signature and first paragraph of each."""
    lines = ["# Python", "", "Public names by package; `help(name)` shows the whole text.", ""]
    for package in PACKAGES:
        module = import_module(package)
        lines += [f"## {package}", ""]
        for name in sorted(module.__all__, key=str.lower):
            value = getattr(module, name)
            if inspect.ismodule(value) or name.startswith("__"):
                continue
            lines += [f"### {package}.{name}", "", *described(name, value), ""]
    return "\n".join(lines)


def described(name, value):
    """Return lines about one public name."""
    try:
        signature = f"{name}{inspect.signature(value)}" if callable(value) else ""
    except (TypeError, ValueError):
        signature = ""
    text = inspect.getdoc(value) if callable(value) else ""
    paragraph = (text or "").partition("\n\n")[0].replace("``", "`")
    shown = re.sub(r"<(?:object object|function <lambda>) at 0x[0-9a-f]+>", "...", signature)
    return [*(["```python", shown, "```", ""] if shown else []), paragraph or f"A value: `{value!r}`"[:200]]


def examples(page):
    """Return the page of the folder of examples: its links to files become names."""
    text = page.read_text(encoding="utf-8").replace("](../docs/", "](../")
    return re.sub(r"\[(`[^`]+`)\]\((?!\.\./)[^)]*\)", r"\1", text)
