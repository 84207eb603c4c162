"""A single rank under a real pseudo-terminal: it may ask its user, and Ctrl-C is its own."""

import json
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


TRAIN = """
import time, ezpz
history = ezpz.History("mine", "run", trackers=[])
for step in range(100000):
    history.update({"loss": 1.0})
    if step == 9:
        print("trained", flush=True)
    time.sleep(0.02)
"""


def test_ctrl_c_of_one_rank_is_no_failure(clean_env, run_cli, tmp_path):
    words = [sys.executable, "-m", "ezpz.launch", "-n", "1", sys.executable, "-c", TRAIN]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, words, clean_env)
    read_until(terminal, "trained")
    os.write(terminal, b"\x03")
    read_until(terminal, "is complete")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    os.close(terminal)
    why = json.loads(run_cli([sys.executable, "-m", "ezpz", "why", "--json"]).stdout)
    assert (why["state"], why["exit_code"], why["causes"][0]["cause"]) == ("stopped", 130, "interrupted")
    steps = why["causes"][0]["step"]
    assert steps >= 10
    assert why["causes"][0]["text"] == f"You pressed Ctrl-C at step {steps}"
