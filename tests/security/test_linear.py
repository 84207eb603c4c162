r"""Text of others costs time in proportion to its length: every pattern of the source meets runs that make one stumble.

Patterns are found in the syntax tree of the source, so that a new one is tried at once. From each come texts that
nearly match: what it repeats, behind what must come before it, with a wrong end. A pattern that is made while the
program runs has a row in `MADE`; functions that do more than match have one in `READERS`.

A pattern that begins with a run (``\d+x``) is tried from each place of the run again: look behind it (``(?<!\d)\d+x``),
or bound it. One that goes on to the end of a line (``a.*b``) is tried behind each ``a``: cut the text, or split it.
"""

import ast
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

try:
    from re import _compiler, _parser
except ImportError:  # Python 3.10
    import sre_compile as _compiler
    import sre_parse as _parser

import ezpz
from ezpz import redact
from ezpz.cluster import hostlist, qstat, scontrol
from ezpz.errors import EzpzError
from ezpz.jobs import pbs_jobs, slurm_jobs
from ezpz.jobs.job_state import Reply
from ezpz.launch import hostfile
from ezpz.launch.decision import raised
from ezpz.redact import redact_argv, redact_text
from ezpz.view.foreign import plain_log, start_times
from ezpz.visible import visible
from ezpz.why import last_words, what_to_try

SOURCE = Path(ezpz.__file__).parent
SHORT, LONG = 2000, 32_000  # characters
FLOOR = 0.08  # CPU seconds for LONG ones that need no comparison
MOST = 4 * LONG / SHORT  # times the CPU of SHORT ones; what is quadratic needs 256 times as much
STUCK = 3.0  # CPU seconds
METHODS = {"search", "match", "fullmatch", "sub", "subn", "findall", "finditer", "split"}
ODD = "a1 \n_A-.,/:=[({<\"'\\x\0"
ENDS = ("", "\0", "\nz")

# Functions that hand a pattern on, with the method and the flags that they use.
HAND_ON = {
    "_is_like": ("fullmatch", re.ASCII),  # of `cluster.site_table`
    "_like": ("fullmatch", re.ASCII),
    "self._is_of_peers": ("search", 0),  # of `launch.run.failures`
    "_end": ("match", re.DOTALL),  # of `redact`
    "_pattern": ("", re.DOTALL),  # of `redact`, which calls a method of what it returns
}

# Patterns that are not known before the program runs: file and words of the source, with such patterns.
MADE = {
    ("cluster/devices/amd.py", "line"): [r"(?m)^GPU: (\d+)\s*$", r"(?m)^GPU\[(\d+)\]"],
    ("cluster/installed.py", "f\"({'|'.join(packages)})-(.+?)(?:-py3\\\\.\\\\d+)?\\\\.(?:dist|egg)-info\""): [
        r"\A(torch|numpy)-(.+?)(?:-py3\.\d+)?\.(?:dist|egg)-info"
    ],
    ("cluster/site_table.py", "pattern"): [],  # in `HAND_ON`
    ("launch/flavours/base.py", "self.per_rank"): [r"-[cmn]|--?(hint|bind-to|rank-by)\b"],
    ("redact.py", "text"): [],
    ("redact.py", "form"): [f"(?s){form}" for _, form in (*redact._FORMS, *redact._MARKED_FORMS)],  # all that are tried
    ("redact.py", "_MARKED"): [redact._MARKED],
    ("redact.py", "f'(?<![A-Za-z0-9]){word}(?![A-Za-z0-9])'"): [r"(?<![A-Za-z0-9])hunter(?![A-Za-z0-9])"],
    ("view/report/public.py", "f'(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])'"): [
        r"(?i)(?<![A-Za-z0-9])(?:node01|node0|me)(?![A-Za-z0-9])"
    ],
}
# What reads more than one pattern does: functions of a text.
READERS = {
    "a log": plain_log.parse_line,
    "times of starts": lambda text: start_times.read_start_times(text, "a"),
    "secrets in a text": lambda text: redact_text(text, {"HF_TOKEN": "correct-horse-7"}),
    "secrets in words": lambda text: redact_argv([text, f"--name={text}"], {}),
    "what a terminal shows": lambda text: visible(text, "\n", colors=True),
    "a list of hosts": hostlist.expand,
    "a line of a host file": lambda text: hostfile._parse(text, "hosts", 1),  # a file is split before
    "scontrol show job": lambda text: scontrol.show_job("13", lambda _: text),
    "scontrol show partition": lambda text: slurm_jobs.partitions(lambda _: text),
    "scontrol of an older job": lambda text: slurm_jobs.HANDLER.job("13", lambda _: Reply(0, text, "")),
    "squeue": slurm_jobs.HANDLER.read,
    "qstat -f": lambda text: pbs_jobs.HANDLER.read(text, "me"),
    "qstat of a job": lambda text: qstat.show_job("13", lambda _: text),
    "qstat -Qf": lambda text: pbs_jobs.queues(lambda _: text),
    "the last words of a rank": lambda text: [
        *(read(text) for read in (last_words.exceptions, last_words.ending, last_words.full_disk)),
        *(read(text) for read in (last_words.cannot_write, last_words.named_file, last_words.broken_device)),
        *(read(text) for read in (last_words.refused_memory, last_words.aborted_after_exception, raised)),
        *(read(text) for read in (last_words.raised_in, last_words.last_lines, last_words.crash)),
        *(read(text) for read in (last_words.mpi_abort, what_to_try.advice_on)),
    ],
}
# Pieces of their formats, of which a text repeats one, behind what may come before.
BEFORE = ("", "step=1 loss=", "Job Id: 13\n    exec_host = ", "JobId=13 NodeList=")
PIECES = (
    *("9", " ", "\n", "[", "]", "(", '"', "\\", "a", "A", ",", "=", ":", "/", "-", "\x1b[", "{", "<"),
    *("a=1 ", "a:", "1/", "n[1-2]", "[rank=0]", "sk-", "hf_", "a://b:", "@", "--token ", "key=", "Bearer "),
    *("echo a|", "sudo -S ", "login a ", "machine a ", "<key>", "identified by '", "mysql -p", "vault login a;"),
    *("Job Id: 1\n", "Queue: a\n", "Nodes=a ", "a|", "step 0 ", "start:", "+n/1", "$(", "&", "'", "curl -u "),
    *('  File "a", line 1, in f\n', "Traceback (most recent call last):\n", "[Errno 28]: '", "cannot save /"),
)

KNOWN = {}


def constants(path):
    """Return what is assigned at the top of a module, as far as it is made of texts and patterns."""
    if path in KNOWN:
        return KNOWN[path]
    known = KNOWN[path] = {"re": re}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ezpz."):
            place = SOURCE.parent.joinpath(*node.module.split("."))
            found = next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()), None)
            there = constants(found) if found else {}
            known |= {each.asname or each.name: there[each.name] for each in node.names if each.name in there}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            with suppress(Exception):  # it is made of something else
                known[target.id] = evaluated(node.value, known)
    return known


def evaluated(node, known):
    return eval(compile(ast.Expression(node), "source", "eval"), dict(known))  # our own source


def uses():
    """Yield each use of a pattern: its place, the method, and the compiled pattern, or None and the words for it."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if not re.search(r"\bre\b|\.(search|match|fullmatch|finditer)\(", text):
            continue
        found = [each for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) for each in use(node, path)]
        used = {pattern for _, method, pattern, _ in found if method != "compile"}
        for place, method, pattern, words in found:
            # One that is only compiled is handed on, or used in another module, which is looked at too.
            if method != "compile" or pattern is None or pattern not in used:
                yield place, method, pattern, words


def use(node, path):
    """Yield what `uses` says of one call: `re.search(pattern, …)`, `PATTERN.search(…)`, or one in `HAND_ON`."""
    name, known = ast.unparse(node.func), constants(path)
    head, _, method = name.rpartition(".")
    place = path.relative_to(SOURCE).as_posix(), node.lineno
    if head == "re" and method in {*METHODS, "compile"}:
        flags = 0
        for word in (*node.args[1:], *(each.value for each in node.keywords)):
            with suppress(Exception):  # a text of the program
                value = evaluated(word, known)
                flags |= value if isinstance(value, re.RegexFlag) else 0
        yield place, method, resolved(node.args[0], known, flags), ast.unparse(node.args[0])
    elif method in METHODS and head:
        source, flags = node.func.value, 0
        if isinstance(source, ast.Call) and ast.unparse(source.func) in HAND_ON:
            source, flags = source.args[0], HAND_ON[ast.unparse(source.func)][1]
        elif not isinstance(source, ast.Name) or not isinstance(known.get(source.id), re.Pattern):
            return
        yield place, method, resolved(source, known, flags), ast.unparse(source)
    elif HAND_ON.get(name, ("",))[0] and (found := resolved(node.args[0], known, HAND_ON[name][1])):
        yield place, HAND_ON[name][0], found, ast.unparse(node.args[0])


def resolved(node, known, flags):
    try:
        value = evaluated(node, known)
    except Exception:  # noqa: BLE001  # whatever it is made of, it is not known here
        return None
    return value if isinstance(value, re.Pattern) else re.compile(value, flags)


# Texts that nearly match.


def near_matches(pattern):
    """Return texts before and units of runs that an implementation without care stumbles over."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tokens = _parser.parse(text, pattern.flags & ~re.UNICODE)
    found = {("", each) for each in ODD}

    def walk(tokens, before):
        for kind, value in tokens:
            name = str(kind)
            if name in {"MAX_REPEAT", "MIN_REPEAT"}:
                body = value[2]
                if value[1] > 40:  # what is repeated less often costs nothing
                    found.update((before, each) for each in (like(body), *letters(body)) if each)
                    found.add(("", before + like(body) or "a"))
                walk(body, before)
            inner = value[1] if name == "BRANCH" else [value[-1]] if name in {"SUBPATTERN", "ASSERT"} else []
            for each in inner:
                walk(each, before)
            before += like([(kind, value)])
        if before:
            found.add(("", before))

    walk(tokens, "")
    return sorted(found)


def like(tokens):
    """Return a short text that a part of a pattern matches, but for what it looks around for."""
    words = []
    for kind, value in tokens:
        name = str(kind)
        if name == "LITERAL":
            words.append(chr(value))
        elif name in {"NOT_LITERAL", "ANY", "IN"}:
            words.append((letters([(kind, value)]) or [""])[0])
        elif name in {"MAX_REPEAT", "MIN_REPEAT"}:
            words.append(like(value[2]) * value[0])
        elif name in {"SUBPATTERN", "BRANCH"}:
            words.append(like(value[-1] if name == "SUBPATTERN" else value[1][0]))
    return "".join(words)


def letters(tokens):
    """Return characters that a part of a pattern matches."""
    if len(tokens) != 1 or str(tokens[0][0]) not in {"LITERAL", "NOT_LITERAL", "ANY", "IN"}:
        return []
    kind, value = tokens[0]
    inside = value if str(kind) == "IN" else ()
    own = [
        chr(each[0] if isinstance(each, tuple) else each) for name, each in inside if str(name) in {"LITERAL", "RANGE"}
    ]
    one = _compiler.compile(_parser.SubPattern(_parser.State(), list(tokens)), re.DOTALL)
    return [each for each in dict.fromkeys((*ODD, *own)) if one.fullmatch(each)]


# Measuring.


class Stuck(Exception):  # noqa: N818  # named by what it is
    """A call has taken `STUCK` seconds of CPU."""


def cpu(call, text):
    """Return the CPU seconds of a call."""

    def stop(*_):
        raise Stuck

    earlier = signal.signal(signal.SIGPROF, stop)
    began = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, STUCK)
    try:
        with suppress(EzpzError):
            call(text)
    except Stuck:
        return STUCK
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, earlier)
    return time.process_time() - began


def is_linear(call, before, unit, end):
    """Tell whether a call takes about as much longer as its text is; one of three tries is enough."""

    def text(length):
        return before + unit * (length // len(unit)) + end

    for _ in range(3):
        took = cpu(call, text(LONG))
        if took == STUCK:
            return False
        if took <= FLOOR or took <= MOST * min(cpu(call, text(SHORT)) for _ in range(3)):
            return True
    return False


def stumbles(call, texts, ends=ENDS):
    """Return the first texts for which a call is not linear, as ``before + unit * N + end``."""
    for before, unit in texts:
        for end in ends:
            if not is_linear(call, before, unit, end):
                return f"{before!r} + {unit!r} * N + {end!r}"
    return ""


def calls(pattern, method):
    """Return the call of a method with a text."""
    run = getattr(pattern, "search" if method == "compile" else method)
    if method in {"sub", "subn"}:
        empty = pattern.pattern[:0]
        run = lambda text: pattern.sub(empty, text)  # noqa: E731
    elif method == "finditer":
        run = lambda text: list(pattern.finditer(text))  # noqa: E731
    return run if isinstance(pattern.pattern, str) else lambda text: run(text.encode("latin-1", "replace"))


@pytest.mark.slow
def test_every_pattern_of_the_source_is_linear(subtests):
    seen, made = set(), set()
    for (file, line), method, found, words in uses():
        patterns = [found]
        if found is None:
            made.add((file, words))
            assert (file, words) in MADE, f"{file}:{line}: {words} is not known before it runs: give it a row in MADE"
            patterns = map(re.compile, MADE[file, words])
        for pattern in patterns:
            if (pattern, method) not in seen:
                seen.add((pattern, method))
                with subtests.test(f"{file}:{line} {method}"):
                    bad = stumbles(calls(pattern, method), near_matches(pattern))
                    assert not bad, f"{file}:{line}: {pattern.pattern!r} takes quadratic time or worse for {bad}"
    assert made == set(MADE)
    assert len(seen) > 150


@pytest.mark.slow
def test_every_reader_of_foreign_text_is_linear(subtests):
    texts = [(before, piece) for before in BEFORE for piece in PIECES]
    for name, read in READERS.items():
        with subtests.test(name):
            bad = stumbles(read, texts, ends=("\0{",))
            assert not bad, f"{name}: quadratic time or worse for {bad}"
