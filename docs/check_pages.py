"""Check what the pages type: verbs, options, modules, functions of the shell and targets of `make` that do not exist.

`make docs` and the tests call `unknown_words`. It reads blocks of shell commands, lines after `$ ` in other blocks, and
inline code. What comes after `launch`'s own options is the user's command: it is looked at when it is ours again.
"""

import argparse
import re
import shlex
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

from ezpz.cli_parser import Parser
from ezpz.verbs import VERBS

ROOT = Path(__file__).resolve().parents[1]
SHELLS = ("bash", "sh", "zsh", "shell", "console")
FENCE = re.compile(r"^( *)(```+) *([\w+-]*)([^\n]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_FUNCTION = re.compile(r"\bezpz_+[a-z0-9][a-z0-9_]*\b")
_STARTERS = ("test_dist", "examples.fsdp", "examples.fsdp_tp", "examples.vit", "examples.llm", "examples.gpt")
TRAINERS = tuple(f"ezpz.{name}" for name in (*_STARTERS, "examples.minimal"))
_PASSING_ON = ("exec", "nohup", "time", "env", "eval", "nice", "then", "do", "if", "!", "$")
# Pages about the words of other programs: only their blocks are looked at, not the code in their sentences.
FOREIGN_PAGES = ("older-scripts.md",)
# Options that pages name alone and that are another program's.
FOREIGN_OPTIONS = {
    "apptainer": "--bind --cleanenv --containall -C",
    "flux": "--requires",
    "make bench": "--strict",
    "make gpu": "--apart --minutes --seconds --stand-in",
    "mpiexec": "--bind-to --envall --noprefix -bootstrap -c -launcher -x",
    "nanoGPT": "--device --init_from",
    "pytest": "-x",
    "python3": "-X -c",
    "qsub": "-e",
    "srun and sbatch": "--gpu-bind --gpus-per-task --het-group --kill-on-bad-exit --no-kill --nodelist --overlap "
    "--requeue --signal",
    "torchrun": "--local-ranks-filter --max-restarts --nnodes --node_rank --nproc_per_node",
    "any program, as an example of a secret": "--api-key",
}


def pages_of(root):
    """Return the pages of a checkout that people read; those that the build makes are left out."""
    made = root / "docs" / "reference"
    pages = [page for page in sorted((root / "docs").rglob("*.md")) if made not in page.parents]
    return [*pages, *(root / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md"))]


def unknown_words(pages, base=ROOT):
    """Return what pages type and nothing knows, one line each.

    Args:
        pages: Files of Markdown.
        base: Folder that the names in the result are relative to.
    """
    found = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        name = page.relative_to(base)
        found += [f"{name}: {problem}" for problem in problems_of(text, foreign=page.name in FOREIGN_PAGES)]
    return list(dict.fromkeys(found))


def problems_of(text, *, foreign=False):
    """Yield what a page types and nothing knows."""
    for line in command_lines(text):
        for problem in check_line(line):
            yield f"`{line}`: {problem}"
    for code in () if foreign else inline_code(text):
        if code.startswith("-"):
            option = _OPTION.match(code)
            if option and not is_known_anywhere(option[0]):
                yield f"`{code}`: no option {option[0]}"
        else:
            for problem in check_line(code):
                yield f"`{code}`: {problem}"


def command_lines(text):
    """Yield the lines of a page's blocks that a reader types, without the breaks that a backslash hides."""
    for _, _, kind, _, block in FENCE.findall(text):
        lines = re.sub(r"\\\n\s*", " ", block).splitlines()
        if kind in SHELLS:
            yield from (line.strip().removeprefix("$ ") for line in lines)
        else:
            yield from (line.strip()[2:] for line in lines if re.match(r"\s*\$ ", line))
    rest = re.sub(r"\\\n\s*", " ", FENCE.sub("", text))
    yield from re.findall(r"^(?: {4,}|\t)(?:\$ )?((?:ezpz|launch|make|python3 -m ezpz)\b.*)$", rest, re.MULTILINE)


def inline_code(text):
    """Yield the code in a page's sentences and tables, on one line each."""
    for paragraph in re.split(r"\n\s*\n", FENCE.sub("\n\n", text)):
        for code in _INLINE.findall(paragraph):
            yield " ".join(code.replace("\\|", "|").split())


def check_line(line):
    """Yield what is unknown in one line of a shell."""
    for function in _FUNCTION.findall(line):
        if function not in functions() and function not in modules():
            yield f"no function {function}"
    for inner in re.findall(r"\$\(([^()]*)\)", line):
        yield from check_line(inner)
    for command in commands_of(line):
        yield from check_command(command)


def commands_of(line):
    """Return the simple commands of a line, each as its words."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&()")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quotation mark that is an apostrophe, or one that goes on in the next line
        words = line.partition(" # ")[0].split()
    commands = [[]]
    for word in words:
        if re.fullmatch(r"[;|&()]+", word):
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def check_command(words):
    """Yield what is unknown in one command, given as its words."""
    words = list(words)
    while words and (words[0] in _PASSING_ON or _ASSIGNMENT.match(words[0])):
        words = words[1:]
    if not words:
        return
    if words[0] == "make":
        yield from check_make(words[1:])
    elif words[0] == "ezpz":
        yield from check_verb(words[1:])
    elif words[0] == "launch":
        yield from check_options(words[1:], options_of_verb("launch"), before_command=True)
    elif words[0].startswith("python") and words[1:2] == ["-m"] and words[2:]:
        yield from check_module(words[2].rstrip(",.:;)"), words[3:])


def check_verb(words):
    """Yield what is unknown after `ezpz`."""
    verb = words[0].strip("[],.:;()") if words else ""
    if verb in VERBS:
        yield from check_options(words[1:], options_of_verb(verb), before_command=verb in {"launch", "simulate"})
    elif re.fullmatch(r"[a-z][\w-]*", verb) and verb != "help":
        yield f"no verb {verb}"
    elif _OPTION.fullmatch(verb) and verb not in {"-h", "--help", "--version"}:
        yield f"no option {verb}"


def check_module(name, words):
    """Yield what is unknown after `python3 -m`; foreign modules are not looked at."""
    if name.partition(".")[0] != "ezpz" or not re.fullmatch(r"[\w.]+", name):
        return
    if name == "ezpz.launch":
        yield from check_options(words, options_of_verb("launch"), before_command=True)
    elif name == "ezpz":
        yield from check_verb(words)
    elif name in TRAINERS:
        known = options_of_trainer(name)
        yield from check_options([word.partition("=")[0] if "=" in word else word for word in words], known)
    elif find_spec(name) is None:
        yield f"no module {name}"


def check_options(words, known, *, before_command=False):
    """Yield the options that are not `known` ({name: takes a value}); those before the command, if one follows."""
    words = list(words)
    while words:
        word = words.pop(0)
        if word == "--":
            if before_command:
                yield from check_command(words)
            return
        if word.startswith("#"):
            return
        bare = word.strip("[],.:;()")
        if not bare.startswith("-"):
            if before_command and not re.match(r"\[|…|\.\.\.|OPTION|NAME=", word):
                yield from check_command([word, *words])
                return
            continue
        option = _OPTION.match(bare)
        if option is None:
            continue
        name = option[0]
        if name not in known and name.replace("-", "_") in {other.replace("-", "_") for other in known}:
            name = next(other for other in known if other.replace("-", "_") == name.replace("-", "_"))
        if name not in known:
            yield f"no option {option[0]}"
        elif known[name] and "=" not in word and not word.endswith("]"):
            words[:1] = []


def check_make(words):
    """Yield what the Makefile does not have: targets, variables, and options in a variable that a target passes on."""
    recipes, variables = makefile()
    targets = [word.strip(",.:;()") for word in words if re.match(r"[a-z]", word)]
    for target in targets:
        if target not in recipes:
            yield f"no target {target}"
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and re.fullmatch(r"[A-Z_]+", name)):
            continue
        if name not in variables:
            yield f"no variable {name}"
        if name == "ARGS":
            known = set().union(*(options_in_recipe(recipes[target]) for target in targets if target in recipes))
            for option in value.split():
                if option.startswith("-") and option.partition("=")[0] not in known:
                    yield f"no option {option} of make {' '.join(targets)}"


# What there is.


def printed_help(call):
    """Return the parser whose help a function prints."""
    found = []

    def keep(parser, file=None):  # noqa: ARG001  # as argparse calls it
        found.append(parser)

    patches = [mock.patch.object(kind, "print_help", keep) for kind in (Parser, argparse.ArgumentParser)]
    with patches[0], patches[1], mock.patch.object(sys, "argv", ["program", "--help"]):
        try:
            call()
        except SystemExit:
            pass
    return found[0]


@cache
def parser_of(verb):
    """Return the parser of a verb."""
    return printed_help(lambda: import_module(VERBS[verb][0]).main(["--help"]))


def options_in(parser):
    return {name: action.nargs != 0 for action in parser._actions for name in action.option_strings}


@cache
def options_of_verb(verb):
    """Return the options of a verb, and whether each takes a value."""
    passed_on = options_of_verb("launch") if verb == "benchmark" else {}
    return passed_on | options_in(parser_of(verb))


@cache
def options_of_trainer(name):
    """Return the options of a trainer, and whether each takes a value; settings in sections too."""
    module = import_module(name)
    plain = name in {"ezpz.test_dist", "ezpz.examples.minimal"}
    parser = printed_help(module.parse_args if name == "ezpz.test_dist" else module.main if plain else _main_of(module))
    plan = getattr(parser, "plan", None)
    of_sections = {**dict.fromkeys(plan.names, False), **dict.fromkeys(plan.files, True)} if plan else {}
    return options_in(parser) | {f"--{key}": takes for key, takes in of_sections.items()}


def _main_of(module):
    return lambda: module.main(["--help"])


@cache
def is_known_anywhere(option):
    """Return whether an option that a page names alone is one of a verb, a trainer, or a program that we name."""
    foreign = " ".join(FOREIGN_OPTIONS.values()).split()
    if option in foreign or option in {"--help", "--version"}:
        return True
    spelled = option.replace("-", "_")
    tables = [options_of_verb(verb) for verb in VERBS] + [options_of_trainer(name) for name in TRAINERS]
    return any(spelled in {name.replace("-", "_") for name in table} for table in tables)


@cache
def functions():
    """Return the names that the shell half has."""
    files = ("src/ezpz/bin/utils.sh", "src/ezpz/cluster/site_shell.py")
    return frozenset(_FUNCTION.findall("\n".join((ROOT / path).read_text(encoding="utf-8") for path in files)))


@cache
def modules():
    """Return the words of this form that Python files and pages of ours are called, or that they define."""
    return frozenset(
        name for path in (ROOT / "src").rglob("*.py") for name in _FUNCTION.findall(path.read_text(encoding="utf-8"))
    )


@cache
def makefile():
    """Return the recipe of each target of the Makefile, and the names of its variables."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipes = dict(re.findall(r"^([a-z]+):[^\n=]*\n((?:\t.*\n)*)", text, re.MULTILINE))
    variables = set(re.findall(r"\$\((?:if \$\()?([A-Z_]+)\)", text)) | set(
        re.findall(r"^([A-Z_]+) \?=", text, re.MULTILINE)
    )
    exported = re.findall(r"^export (.*)$", text, re.MULTILINE)
    return recipes, variables | set(" ".join(exported).split())


def options_in_recipe(recipe):
    """Return the options of the programs in a recipe: those of our scripts, and the few of pytest that we name."""
    scripts = [ROOT / path for path in re.findall(r"\b(?:bench|tests)/[\w/]+\.py\b", recipe)]
    found = set()
    for script in scripts:
        found |= set(re.findall(r"\"(--?[a-z][\w-]*)\"", script.read_text(encoding="utf-8")))
    if "pytest" in recipe or "tries.py" in recipe:
        found |= {"-x", "-k", "-m", "-q", "-s", "--lf", "--co"}
    return found
