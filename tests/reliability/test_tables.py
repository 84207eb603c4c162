"""The results of `make matrix`, which several processes may find at the same time."""

import json
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
