"""What a Python of ours writes that is interrupted before it can handle that: never on the screen."""

import shutil
import signal
import subprocess
import sys

import pytest

from ezpz.launch.run.launcher_child import Interrupts
from lab.process import wait_until
from lab.ssh import SRC

FRAME = '  File "<frozen importlib._bootstrap_external>", line 1097, in __init__\n'
OURS = {
    "an import": f"Traceback (most recent call last):\n{FRAME}KeyboardInterrupt\n",
    "before the imports": "python: failed to set __main__.__loader__\n"
    f"Traceback (most recent call last):\n{FRAME}KeyboardInterrupt: \n",
    "runpy": f"Could not import runpy module\nTraceback (most recent call last):\n{FRAME}KeyboardInterrupt\n",
}
THEIRS = {
    "another error": f"Traceback (most recent call last):\n{FRAME}ImportError: no such file\n",
    "a line alone": "python: failed to set __main__.__loader__\nsrun: error: n01: task 0\n",
}


def test_only_tracebacks_of_an_interrupt_are_left_out(subtests):
    for about, text in {**OURS, **THEIRS}.items():
        with subtests.test(about):
            pipe, shown = Interrupts(), b""
            for byte in f"before\n{text}after".encode():
                shown += pipe.feed(bytes([byte]))
            shown += pipe.end()
            assert shown.decode() == f"before\n{'' if about in OURS else text}after"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run_shim.py", "start_agent.py"])
def test_a_shim_or_an_agent_that_is_interrupted_in_its_imports_writes_nothing(tmp_path, name):
    """It ends of the signal: who starts it says what that means."""
    copy = shutil.copytree(SRC, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    errors = copy / "ezpz" / "errors.py"
    pause = f"import time\nopen({str(tmp_path / 'imports')!r}, 'w').close()\ntime.sleep(60)\n"
    first = "from __future__ import annotations\n"
    errors.write_text(errors.read_text().replace(first, first + pause))
    line = [sys.executable, "-I", "-S", copy / "ezpz" / "launch" / "host" / name, "true"]
    child = subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_until((tmp_path / "imports").exists, 30, "its imports")
    child.send_signal(signal.SIGINT)
    assert (child.communicate(timeout=30)[0], child.returncode) == ("", -signal.SIGINT)
