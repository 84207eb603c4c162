"""The results of `make matrix`, which several processes may find at the same time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KEEP = """
import sys
from pathlib import Path
from tables import keep
for number in range(25):
    keep(Path(sys.argv[1]), f"{sys.argv[2]} {number}", ["ok", "2026-11-23", "", ""])
"""


@pytest.mark.slow
def test_no_result_is_lost_where_several_processes_write(tmp_path):
    path = tmp_path / "matrix.json"
    path.write_text('{"earlier": ["ok", "2026-11-22", "", ""]}')
    folder = Path(__file__).parent
    children = [
        subprocess.Popen([sys.executable, "-c", KEEP, str(path), str(number)], cwd=folder) for number in range(4)
    ]
    assert [child.wait(120) for child in children] == [0] * 4
    found = json.loads(path.read_text())
    assert set(found) == {"earlier", *(f"{writer} {number}" for writer in range(4) for number in range(25))}


def test_the_faults_of_attempts_are_counted_by_flavour(tmp_path):
    page, results = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text("before\n<!-- attempts: begin -->\nold\n<!-- attempts: end -->\nafter\n")
    found = {f"attempts / ssh / cut off / {number}": ["ok", "2026-11-24", "", "abc1234"] for number in (1, 2)}
    found["attempts / mpich / cut off / 1"] = ["**failed**", "2026-11-24", "", "abc1234"]
    found["attempts / mpich / bug / 1"] = ["skipped", "2026-11-24", "no mpich", "abc1234"]
    found["ssh 1-kill"] = ["ok", "2026-11-22", "", ""]  # of another table
    results.write_text(json.dumps(found))
    line = [sys.executable, Path(__file__).parent / "tables.py", "attempts", results, page]
    subprocess.run(line, check=True)
    text = page.read_text()
    assert "\n2026-11-24, commit abc1234: 2 of 3 right.\n" in text
    assert "| fault | ssh | mpich |" in text
    assert "| cut off | 2 of 2 | 0 of 1 |" in text
    assert "old" not in text
    results.write_text(json.dumps({**found, "attempts / srun / cut off / 1": ["ok", "2026-11-26", "", "def5678"]}))
    subprocess.run(line, check=True)
    first, second = "2026-11-24, commit abc1234 (ssh, mpich): 2 of 3 right", "2026-11-26, commit def5678 (srun): 1 of 1"
    assert f"\n{first}; {second} right.\n" in page.read_text()


def test_each_python_has_a_column_and_what_was_not_run_its_reason(tmp_path):
    page, results = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text("<!-- pythons: begin -->\n<!-- pythons: end -->\n")
    found = {
        "9.1 quick": ["ok", "2026-11-27", "5 passed", "abc1234"],
        "9.1 `gpt`": ["**failed**", "2026-11-28", "", "abc1234"],
        "9.2 quick": ["skipped", "2026-11-28", "no Python 9.2", "abc1234"],
        "8.0 quick": ["ok", "2026-11-20", "", "fff0000"],  # of versions that are asked for no more
    }
    results.write_text(json.dumps(found))
    line = [sys.executable, Path(__file__).parent / "tables.py", "pythons", results, page]
    subprocess.run(line, check=True, env={**os.environ, "PYTHONS": "9.1 9.2"})
    told = page.read_text().splitlines()
    assert "2026-11-27 to 2026-11-28, commit abc1234: 1 of 2 ok." in told
    assert told[told.index("| Python | 9.1 | 9.2 |") + 3 :][:2] == [
        "| quick | ok: 5 passed | (1) |",
        "| `gpt` | **failed** | not run |",
    ]
    assert "1. no Python 9.2" in told
