r"""Feed readers of foreign bytes with damaged input, and keep every input that breaks one.

    make fuzz                                       every target, five minutes each
    make fuzz SECONDS=3600 K=reports                one hour for the targets whose names hold `reports`
    python tests/security/fuzz.py --replay FILE     feed a kept input to its target again, with the traceback

A target is a function of bytes in a module `targets_*.py` beside this file, with the decorator `target`. It calls a
reader and catches what that reader may raise; any other exception, or one input that takes longer than `SLOWEST`, is a
failure. Inputs are mutations of the target's seeds and of inputs that did something new: a target may return what
happened (any hashable value), and an input with a value not seen before is mutated further.

A failure is written to `.test/fuzz/NAME-DIGEST`, and the seed of the random numbers is printed. An input that has
broken a reader belongs into `inputs/` beside this file, under that name: `make test` feeds all of these, and of the
mutations as many as the target names, always the same. Those in `inputs/unsolved` break one that is not mended yet.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import itertools
import json
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
KEPT = HERE.parents[1] / ".test" / "fuzz"
RECORDED = HERE / "inputs"
SLOWEST = 10.0  # CPU seconds for one input
_STUCK = 12  # times as long by the clock: other processes may keep the machine busy
_MOST_KEPT = 2000  # inputs that did something new
_LONGEST = 1 << 20  # bytes of an input

TARGETS = {}


@dataclass(frozen=True)
class Target:
    """One reader: `feed` gets damaged bytes, in `make test` so many of them as `inputs` says."""

    name: str
    feed: object
    seeds: tuple[bytes, ...]
    inputs: int = 0
    words: tuple[bytes, ...] = ()  # pieces of its format, to be strewn in


def target(*, seeds, inputs, words=()):
    """Register a function of bytes as a target under its own name."""

    def register(function):
        assert function.__name__ not in TARGETS
        TARGETS[function.__name__] = Target(function.__name__, function, tuple(seeds), inputs, tuple(words))
        return function

    return register


def load_targets():
    """Import every module of targets, and return the targets by name."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    sys.modules.setdefault("fuzz", sys.modules[__name__])  # run as a script, this module is `__main__`
    for path in sorted(HERE.glob("targets_*.py")):
        importlib.import_module(path.stem)
    return TARGETS


# Mutations.

_ODD_WORDS = (
    *(b"", b"\0", b"\n", b"\r\n", b" ", b"\xff", b"\xef\xbb\xbf", b"\xc3\xa9", b"\xed\xa0\x80", b"\\ud800", b"\\u0000"),
    *(b"-1", b"0", b"1e999", b"-0", b"NaN", b"Infinity", b"9" * 400, b"9" * 5000, b"1.5", b"0x7f", b"1_000"),
    *(b"[" * 4000, b"{" * 4000, b'{"a":' * 1000, b"[]", b"{}", b"null", b"true", b'""', b'"', b"'", b"\\"),
    *(number.to_bytes(size, order) for number in (0, 1) for size in (4, 8) for order in ("little", "big")),
    *(b"\xff" * size for size in (2, 4, 8)),
    *(b"\x7f" + b"\xff" * size for size in (3, 7)),
    *(b"\xff" * size + b"\x7f" for size in (3, 7)),
)
_ODD_VALUES = (
    *(None, True, False, 0, -1, 1 << 63, 10**400, 1.5, 1e308, float("nan"), float("inf"), "", "x" * 5000),
    *("\ud800", "\0", "NaN", "../..", "/", [], [[]], {}, {"": {}}, [None] * 100),
)


def _cut(data, random_):
    start = random_.randrange(len(data) + 1)
    return data[:start] + data[min(len(data), start + random_.choice((1, 2, 4, 16, 1 << 20))) :]


def _flip(data, random_):
    if not data:
        return data
    at = random_.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << random_.randrange(8))]) + data[at + 1 :]


def _overwrite(data, random_):
    at = random_.randrange(len(data) + 1)
    junk = random_.randbytes(random_.choice((1, 2, 4, 8, 64)))
    return data[:at] + junk + data[at + len(junk) :]


def _repeat(data, random_):
    start = random_.randrange(len(data) + 1)
    end = min(len(data), start + random_.choice((1, 4, 32, 256)))
    return data[:end] + data[start:end] * random_.choice((1, 2, 100)) + data[end:]


def _strew(data, random_, words):
    at = random_.randrange(len(data) + 1)
    word = random_.choice(words)
    return data[:at] + word + data[at + random_.choice((0, len(word))) :]


def _mutate_json(data, random_):
    """Replace, remove or add one value of a JSON text; other data is returned as it is."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return data
    places = []
    pending = [tree]
    while pending and len(places) < 1000:
        node = pending.pop()
        inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in inner:
            places.append((node, key))
            pending.append(value)
    if not places:
        return json.dumps(random_.choice(_ODD_VALUES)).encode()
    node, key = random_.choice(places)
    if isinstance(node, dict) and random_.random() < 0.2:
        del node[key]
    elif random_.random() < 0.2:
        other, name = random_.choice(places)
        node[key] = json.loads(json.dumps(other[name])) if _is_small(other[name]) else None
    else:
        node[key] = random_.choice(_ODD_VALUES)
    return json.dumps(tree).encode()


def _is_small(value):
    try:
        return len(json.dumps(value)) < 10_000
    except (ValueError, RecursionError):
        return False


def mutated(data, other, words, random_):
    """Return `data` with some damage; `other` is another input, to be spliced in."""
    for _ in range(random_.choice((1, 1, 2, 3, 8))):
        kind = random_.randrange(8)
        if kind == 0:
            data = _cut(data, random_)
        elif kind == 1:
            data = _flip(data, random_)
        elif kind == 2:
            data = _overwrite(data, random_)
        elif kind == 3:
            data = _repeat(data, random_)
        elif kind in {4, 5}:
            data = _strew(data, random_, words)
        elif kind == 6:
            data = _mutate_json(data, random_)
        else:
            data = data[: random_.randrange(len(data) + 1)] + other[random_.randrange(len(other) + 1) :]
    return data[:_LONGEST]


# Running.


@dataclass
class Result:
    """What came of one target: inputs that were fed, and those that broke it, with the error."""

    inputs: int = 0
    behaviours: int = 0
    failures: list[tuple[Path, str]] = field(default_factory=list)


class TooSlow(Exception):  # noqa: N818  # named by what it is
    """One input has taken more than `SLOWEST` seconds of CPU, or waits for something."""


def _too_slow(number, _):
    raise TooSlow(f"longer than {SLOWEST:g} s" if number == signal.SIGPROF else f"waits for {SLOWEST * _STUCK:g} s")


def run(one, seed, *, inputs=None, seconds=None, most_failures=3):
    """Feed so many mutations to a target, or for so many seconds, at least one.

    The same seed gives the same inputs in the same order. The target's own seeds come before, and before that time
    begins: with the first one a reader may import torch.
    """
    random_ = random.Random(f"{one.name} {seed}")
    words = (*_ODD_WORDS, *one.words * 3)
    corpus, seen, result = list(one.seeds), set(), Result()

    def take(data):
        result.inputs += 1
        error, behaviour = feed(one, data)
        if error:
            result.failures.append((_keep(one.name, data), error))
        elif behaviour is not None and behaviour not in seen and len(corpus) < _MOST_KEPT:
            seen.add(behaviour)
            corpus.append(data)

    for data in one.seeds:
        take(data)
    end = time.monotonic() + (seconds or 0)
    for number in itertools.count():
        is_over = number == inputs if seconds is None else number > 0 and time.monotonic() >= end
        if is_over or len(result.failures) >= most_failures:
            break
        take(mutated(random_.choice(corpus), random_.choice(corpus), words, random_))
    result.behaviours = len(seen)
    return result


def recorded():
    """Return the inputs that have broken a reader before it was mended, as files named ``TARGET-DIGEST``."""
    return sorted(path for path in RECORDED.iterdir() if path.is_file() and "-" in path.name)


def target_of(path):
    """Return the target of a kept input, which its file is named after."""
    return load_targets()[Path(path).name.rpartition("-")[0]]


def feed(one, data):
    """Return the error of one input, or an empty text, and what happened."""
    earlier = {number: signal.signal(number, _too_slow) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, SLOWEST)
    signal.setitimer(signal.ITIMER_REAL, SLOWEST * _STUCK)
    try:
        return "", one.feed(data)
    except Exception as error:  # noqa: BLE001  # whatever it is, the target has not said that its reader may raise it
        return f"{type(error).__name__}: {error}"[:300], None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _keep(name, data):
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path


def main():
    parser = argparse.ArgumentParser(description="Feed readers of foreign bytes with damaged input.")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each target")
    parser.add_argument("--seed", type=int, default=None, help="of the random numbers; a new one by default")
    parser.add_argument("--only", default="", help="targets whose names hold this")
    parser.add_argument("--replay", type=Path, help="feed one kept input to its target")
    options = parser.parse_args()
    targets = load_targets()
    if options.replay:
        one = target_of(options.replay)
        print(f"{one.name}: {one.feed(options.replay.read_bytes())!r}")
        return 0
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    chosen = [one for name, one in targets.items() if options.only in name]
    if not chosen:
        print(f"no target is called {options.only!r}; there are {', '.join(targets)}", file=sys.stderr)
        return 2
    print(f"seed {seed}")
    broken = 0
    for one in chosen:
        result = run(one, seed, seconds=options.seconds)
        broken += bool(result.failures)
        print(f"{one.name}: {result.inputs} inputs, {result.behaviours} behaviours, {len(result.failures)} failures")
        for path, error in result.failures:
            print(f"  {path}: {error}")
        sys.stdout.flush()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
