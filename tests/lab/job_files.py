"""The command lines of `ezpz submit --dry-run` that write the job files in examples/; as a program it writes them.

make examples      after a change of what job files look like, or of a site's table
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TRAIN = ["python3", "-m", "ezpz.examples.fsdp_tp"]
_LARGE = ["--preset", "300m", "--dtype", "bf16", "--save_freq", "500", "--resume", "auto", "--outdir", "outputs/ezpz"]
_SMALL = ["--preset", "debug", "--save_freq", "100", "--resume", "auto", "--outdir", "outputs/ezpz"]
_LAPTOP = ["python3", "-m", "ezpz.examples.fsdp", "--preset", "debug", "--resume", "auto", "--outdir", "outputs/laptop"]
_TWO = ["--nhosts", "2", "--time", "1h", "--name", "ezpz"]
# --venv .venv is what ezpz_setup_env makes in a checkout; without it the environment of this Python would be named.
COMMANDS = {
    "aurora.pbs": ["--site", "aurora", *_TWO, "--", *_TRAIN, *_LARGE],
    "frontier.slurm": ["--site", "frontier", *_TWO, "--", *_TRAIN, *_LARGE],
    "generic.slurm": ["--scheduler", "slurm", "-A", "ACCOUNT", "-q", "PARTITION", *_TWO, "--", *_TRAIN, *_SMALL],
    "laptop.sh": ["--scheduler", "none", "--", *_LAPTOP],
    "perlmutter.slurm": ["--site", "perlmutter", *_TWO, "--", *_TRAIN, *_LARGE],
    "polaris.pbs": ["--site", "polaris", *_TWO, "--", *_TRAIN, *_LARGE],
}


def written(name):
    """Return what `ezpz submit --dry-run` prints for one of the files, called in the checkout."""
    from ezpz.jobs.submit import main

    before, told = Path.cwd(), {name: os.environ.pop(name, None) for name in ("XDG_CONFIG_HOME", "SBATCH_ACCOUNT")}
    home, out, notes = os.environ.get("HOME"), io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as empty:
        os.environ["HOME"] = empty  # no sites.toml of the user's own
        os.chdir(ROOT)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(notes):
                code = main(["--dry-run", "--venv", ".venv", *COMMANDS[name]])
        finally:
            os.chdir(before)
            os.environ.update({key: value for key, value in {**told, "HOME": home}.items() if value is not None})
    assert code == 0, notes.getvalue()
    return out.getvalue()


if __name__ == "__main__":
    for each in COMMANDS:
        (ROOT / "examples" / each).write_text(written(each))
