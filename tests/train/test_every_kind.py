"""Every kind of loader on 2, 3 and 1 ranks, each of which goes on where the one before has stopped.

``EZPZ_LOADERS=docs/data.md`` writes what was found into that page (`make loaders`); otherwise the page must say so.
"""

import json
import os
import sys
from pathlib import Path

import pytest

import ezpz
from lab.require import require
from reliability.tables import replace_block

PROGRAM = Path(__file__).with_name("every_kind_of_loader.py")
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "data.md"
LIBRARIES = ROOT / ".test" / "hugging_face" / "bin" / "python"
WORLDS = (("2",), ("3", "2"), ("1", "3"))
AT_THE_SAMPLE, SAYS = "at the sample", "says what it cannot keep"
HEAD = ["| kind | an epoch on 1, 2, 3 ranks | resumed on as many | on others |", "|---|---|---|---|"]


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_kind_comes_once_and_goes_on_as_the_page_says(run_cli, clean_env, tmp_path):
    python = str(LIBRARIES) if LIBRARIES.exists() else sys.executable
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    found = []
    for world, *before in WORLDS:
        words = [python, "-m", "ezpz.launch", "-n", world, python, PROGRAM, tmp_path, *before]
        done = run_cli(words, env, 300)
        assert done.returncode == 0, done.stdout + done.stderr
        found.append(json.loads((tmp_path / f"found-{world}.json").read_text()))
    rows = {kind: row(kind, [each[kind] for each in found]) for kind in found[0] if "missing" not in found[0][kind]}
    missing = sorted({each["missing"] for each in found[0].values() if "missing" in each})
    if page := os.environ.get("EZPZ_LOADERS"):
        assert not missing, missing
        replace_block(Path(page), "loaders", "\n".join([*HEAD, *rows.values()]))
        return
    shown = PAGE.read_text(encoding="utf-8").partition("<!-- loaders: begin -->")[2].partition("<!-- loaders: end")[0]
    assert set(rows.values()) <= set(shown.split("\n")), f"`make loaders` writes it: {rows}"
    require("hugging_face", f"no {', '.join(missing)} (tests/lab/setup hugging_face)" if missing else "")


def row(kind, found):
    """What all worlds say alike of a kind."""
    cells = []
    for what in ("epoch", "same", "other"):
        said = [each.get(what, each.get("error")) for each in found if what in each or "error" in each]
        if what == "other" and set(said) == {AT_THE_SAMPLE, SAYS}:  # by luck: the first samples of each were the same
            said = [SAYS]
        assert set(said) in ({"once"}, {AT_THE_SAMPLE}, {SAYS}), (kind, found)
        cells.append(said[0])
    return f"| {kind} | {' | '.join(cells)} |"
