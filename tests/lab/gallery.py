"""Record what people see, from real runs, for docs/gallery.md: ``make gallery`` writes docs/gallery/.

Each text is what a terminal of 80 columns shows, colours left out, with the folder's own path shortened.
"""

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs" / "gallery"
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")
DIES = """
import torch
import ezpz
rank = ezpz.setup_torch()
with ezpz.History("dies") as history:
    for step in range(10):
        if step == 3 and rank == 1:
            raise ValueError("my bug")
        history.update({"loss": torch.tensor(1.0 / (step + 1))}, step=step)
        ezpz.barrier()
"""
TEST = "python3 -m ezpz.test_dist"
SESSIONS = {  # file: commands, one after the other
    "main-job": [f"launch -n 2 {TEST}"],
    "runs": ["launch -n 2 python3 dies.py", "ezpz runs"],
    "compare": [
        f"launch -n 2 {TEST} --train-iters 30 --lr 0.003 --outdir outputs/two",
        None,
        "ezpz compare ONE outputs/two",
    ],
    "startup": ["ezpz startup"],
    "where": ["ezpz where"],
    "explain": [f"launch --explain -n 2 {TEST}"],
}


def on_terminal(command, folder, env):
    """Return what a terminal of 80 columns shows of a command."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    child = subprocess.Popen(command, shell=True, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # EIO: the other end is closed
            break
        parts.append(part)
    child.wait()
    os.close(ours)
    text = ESCAPES.sub("", b"".join(parts).decode()).replace("\r\n", "\n")
    lines = (line.rpartition("\r")[2].rstrip() for line in text.split("\n"))
    return "\n".join(lines).strip("\n").replace(str(folder), "/home/me").replace(str(ROOT), "/home/me/ezpz")


def record(folder):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("EZPZ_", "SLURM_", "PBS_"))}
    env |= {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder / "home"), "TERM": "xterm"}
    env |= {"EZPZ_LIVE": "0", "LC_ALL": "C.UTF-8", "TMPDIR": str(folder / "tmp")}
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    (folder / "dies.py").write_text(DIES)
    for name, commands in SESSIONS.items():
        texts = []
        for typed in commands:
            if typed is None:  # what came before only prepares
                texts.clear()
                continue
            first = next(iter(sorted((folder / "outputs" / "test_dist").glob("2*"))), folder)
            command = typed.replace("ONE", str(first.relative_to(folder)))
            texts.append(f"$ {command}\n{on_terminal(command, folder, env)}")
        (GALLERY / f"{name}.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    shutil.copy(first / "plots" / "mplot" / "pngs" / "loss.png", GALLERY / "loss.png")
    report = [sys.executable, "-m", "ezpz", "report", "--public", "-o", folder / "report.html", first]
    subprocess.run(report, check=True, cwd=folder, env=env)
    for mode, flag in (("light", []), ("dark", ["--blink-settings=preferredColorScheme=0"])):
        picture(folder / "report.html", GALLERY / f"report-{mode}.png", folder, flag)


def picture(page, path, folder, flags):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no browser: the pictures of the report stay as they are")
        return
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1000,1400"]
    command += [f"--user-data-dir={folder / 'browser'}", f"--screenshot={path}", *flags, page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    GALLERY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        record(Path(temporary))
