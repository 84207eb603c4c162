"""Run a verb in a fork of this process: as a process of its own, without the time that starting one takes."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile

from ezpz.cli import main

HANGS = 20  # seconds after which a verb that waits is ended
CPU = 20  # seconds
MEMORY = 4 << 30  # bytes of addresses


class Ended:
    """How a verb has ended: ``code``, minus the signal that ended it, and what it wrote, ``out`` and ``err``."""

    def __init__(self, status, out, err):
        self.code = os.waitstatus_to_exitcode(status)
        self.out, self.err = out, err


def run_verb(words, verb=main, environ=None, folder=None):
    """Return how ``ezpz WORDS`` ends, within limits on time and memory.

    Args:
        words: Those behind ``ezpz``.
        verb: What is called with them.
        environ: The environment; that of this process if it is None.
        folder: Where it is typed; None is here.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            _in_child(lambda: verb(list(words)), out, err, environ, folder)
        _, status = os.waitpid(child, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Ended(status, *texts)


def _in_child(verb, out, err, environ, folder):
    code = 99
    try:
        for target, source in ((1, out), (2, err)):
            os.dup2(source.fileno(), target)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115  # theirs
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU, CPU))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HANGS)
        if environ is not None:
            os.environ.clear()
            os.environ.update(environ)
            tempfile.tempdir = None  # what it has found once it does not look for again
        if folder is not None:
            os.chdir(folder)
        code = verb()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0
    except BaseException:  # noqa: BLE001  # as a process would
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
