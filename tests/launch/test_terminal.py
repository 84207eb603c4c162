"""A single rank under a real pseudo-terminal: it may ask its user, and Ctrl-C is its own."""

import os
import pty
import select
import sys
import time

CATCH = """
import sys, time
try:
    print("tty", sys.stdin.isatty(), "said", input(), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("caught", flush=True)
    time.sleep(0.5)
    sys.exit(7)
"""


def read_until(terminal, word, seconds=200):
    text, end = "", time.monotonic() + seconds
    while word not in text and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            text += os.read(terminal, 4096).decode()
    assert word in text, text
    return text


def test_one_rank_keeps_the_terminal_and_its_ctrl_c(clean_env, tmp_path):
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(
            sys.executable, [sys.executable, "-m", "ezpz.launch", "-n", "1", sys.executable, "-c", CATCH], clean_env
        )
    read_until(terminal, "launcher (")
    os.write(terminal, b"hello\n")
    assert "tty True said hello" in read_until(terminal, "said hello")
    os.write(terminal, b"\x03")
    read_until(terminal, "exited with code 7")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    os.close(terminal)
