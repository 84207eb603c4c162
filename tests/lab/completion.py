"""Write the completions for bash and zsh from the parsers of all verbs: ``make completion``.

TAB must not start Python, so the shells get plain tables. `completion.bash.in` and `completion.zsh.in`, beside this
file, hold the functions, and one line, ``@TABLES@``, for what it adds: verbs, options, what kind of word each takes.
"""

import argparse
import re
import textwrap
from importlib import import_module
from pathlib import Path
from unittest import mock

from ezpz.cli.benchmark import TRAINERS
from ezpz.cluster import probe
from ezpz.cluster.launchers import FLAVOURS
from ezpz.cluster.site import load
from ezpz.train.data.catalog import HUB
from ezpz.verbs import VERBS

BIN = Path(__file__).parents[2] / "src" / "ezpz" / "bin"
SHELLS = {"bash": BIN / "completion.bash", "zsh": BIN / "completion.zsh"}

# What to offer for a word, by its name in the help; "" offers nothing (numbers, times, names that only the user knows).
KINDS = {
    "FILE": "files",
    "SCRIPT": "files",
    "DIR": "folders",
    "D": "folders",
    "ROOT": "folders",
    "ROOT|RUN": "runs",
    "RUN": "runs",
    "RUN|KEY": "runs",
    "RUN|ID|LOG": "runs",
    "RUN|ID": "runs",
    "ID": "launches",
    "COMMAND": "command",
    "SITE": "sites",
}
EXACT = {  # where the name in the help says too little: (verb, option or argument)
    ("launch", "--hosts"): "hosts",
    ("launch", "--exclude"): "hosts",
    ("doctor", "--hosts"): "hosts",
    ("kill", "--hosts"): "hosts",
    ("stacks", "--hosts"): "hosts",
    ("launch", "--flavour"): tuple(FLAVOURS),
    ("launch", "--cpu-bind"): ("none", "depth", "list"),
    ("benchmark", "--run"): tuple(TRAINERS),
    ("sites", "NAME"): "sites",
    ("fetch", "NAME"): tuple(HUB),
}
REPEATED = {"--env", "--unset", "-k", "--ranks"}  # may come more than once


def parser_of(verb):
    """Return the parser that a verb prints its help with."""
    found = []

    def keep(parser, file=None):
        found.append(parser)

    from ezpz.cli_parser import Parser

    with mock.patch.object(Parser, "print_help", keep), mock.patch.object(argparse.ArgumentParser, "print_help", keep):
        try:
            import_module(VERBS[verb][0]).main(["--help"])
        except SystemExit:
            pass
    return found[0]


def kind_of(verb, action):
    """Return what to offer for the word of an option or argument: the name of a kind, or the words themselves."""
    if action.choices:
        return tuple(map(str, action.choices))
    meta = action.metavar or action.dest.upper()
    for name in (*action.option_strings, meta):
        if (verb, name) in EXACT:
            return EXACT[verb, name]
    if re.fullmatch(r"[a-z]+(\|[a-z]+)+", meta):  # yes|no|site
        return tuple(meta.split("|"))
    return KINDS.get(meta, "")


def facts(verb):
    """Return a verb's options, ``[(names, kind or None, text)]``, and the kind of its other words.

    The kind is None for an option without a value.
    """
    options, words = [], ""
    for action in parser_of(verb)._actions:  # argparse has no public list of them
        if action.help == argparse.SUPPRESS:
            continue
        if not action.option_strings:
            words = words or kind_of(verb, action)
            continue
        text = (action.help or "").partition("; ")[0].replace("%(default)s", str(action.default))
        takes = None if action.nargs == 0 else kind_of(verb, action)
        options.append((tuple(action.option_strings), takes, textwrap.shorten(text, 66, placeholder=" …")))
    if verb in {"launch", "simulate"}:
        words = "command"
    return options, words


def written(kind):
    return " ".join(("words", *kind)) if isinstance(kind, tuple) else kind


def for_bash():
    """Return the tables of bash: functions of `case`, since 3.2 has no associative arrays."""
    all_facts = {verb: facts(verb) for verb in VERBS}
    verbs = " ".join((*VERBS, "help"))
    lines = ["_ezpz_verbs() {", "  ezpz_words=''", *wrapped(verbs, "  ezpz_words+=' ", "'"), "}", ""]
    lines += ["_ezpz_options() { # VERB", "  case $1 in"]
    for verb, (options, _) in all_facts.items():
        lines += [f"  {verb})", "    ezpz_words=''"]
        lines += wrapped(" ".join(name for names, _, _ in options for name in names), "    ezpz_words+=' ", "'")
        lines.append("    ;;")
    lines += ["  *) ezpz_words='--help --version' ;;", "  esac", "}", ""]
    lines += ["_ezpz_value() { # VERB:OPTION", "  case $1 in"]
    for verb, (options, _) in all_facts.items():
        for names, takes, _ in options:
            if takes is not None:
                pattern = " | ".join(f"{verb}:{name}" for name in names)
                lines.append(f"  {pattern}) ezpz_kind='{written(takes) or 'nothing'}' ;;")
    lines += ["  *) ezpz_kind='' ;;", "  esac", "}", ""]
    lines += ["_ezpz_argument() { # VERB", "  case $1 in"]
    lines += [f"  {verb}) ezpz_kind='{written(words)}' ;;" for verb, (_, words) in all_facts.items() if words]
    lines += ["  *) ezpz_kind=nothing ;;", "  esac", "}", ""]
    return "\n".join([*lines, *sites_for_shells()])


def wrapped(text, before, after, width=118):
    """Yield lines that hold the words of a text."""
    line = ""
    for word in text.split():
        if line and len(before) + len(line) + len(word) + 1 + len(after) > width:
            yield before + line + after
            line = ""
        line += f" {word}" if line else word
    if line:
        yield before + line + after


def sites_for_shells():
    names = sorted(load({}, probe.read))
    return ["_ezpz_sites() {", "  ezpz_words=''", *wrapped(" ".join(names), "  ezpz_words+=' ", "'"), "}"]


def for_zsh():
    """Return the tables of zsh: specifications of `_arguments`, with the texts of the help."""
    lines = ["_ezpz_verbs() {", "  local -a verbs=("]
    lines += [f"    {quoted(f'{verb}:{line}')}" for verb, (_, line, _) in VERBS.items()]
    lines += ["    'help:show the help of a verb'", "  )", "  _describe -t verbs verb verbs", "}", ""]
    lines += ["_ezpz_arguments() { # VERB", "  case $1 in"]
    for verb in VERBS:
        options, words = facts(verb)
        lines += [f"  {verb})", "    specs=("]
        for names, takes, text in options:
            value = "" if takes is None else f":{names[0].lstrip('-')}:{action_of(takes)}"
            again = "*" if names[0] in REPEATED else f"({' '.join(names)})"
            lines += [f"      {quoted(f'{again}{name}[{escaped(text)}]{value}')}" for name in names]
        if words == "command":
            lines += ["      '(-)1:command:_command_names -e'", "      '*::arguments:_normal'"]
        elif words:
            lines.append(f"      {quoted(f'*:{verb}:{action_of(words)}')}")
        lines += ["    )", "    ;;"]
    lines += ["  esac", "}", ""]
    return "\n".join([*lines, *sites_for_shells()])


def action_of(kind):
    """Return the part of a specification that says what to offer."""
    if isinstance(kind, tuple):
        return f"({' '.join(kind)})"
    return {"files": "_files", "folders": "_files -/", "": " "}.get(kind, f"_ezpz_offer {kind}")


def escaped(text):
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def completion(shell):
    """Return the whole file of a shell."""
    template = Path(__file__).with_suffix(f".{shell}.in").read_text(encoding="utf-8")
    return template.replace("@TABLES@\n", f"{for_bash() if shell == 'bash' else for_zsh()}\n")


if __name__ == "__main__":
    for name, path in SHELLS.items():
        path.write_text(completion(name), encoding="utf-8")
