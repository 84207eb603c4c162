"""The scripts of docs/data.md and docs/train.md: run as they stand there, under every strategy, and as short as any."""

import ast
import re
import sys
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path

import pytest

import ezpz

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "data.md"
TRAIN = PAGE.with_name("train.md")
PLAIN, OURS = "# train.py\n", "# train.py with ezpz\n"


def block(begin):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = [each for each in blocks if each.startswith(begin)]
    return [line.partition("  #")[0].rstrip() for line in found.splitlines() if line.strip() and line[0] != "#"]


def changed(lines):
    """How many lines of another script are not in the plain one."""
    matches = SequenceMatcher(None, block(PLAIN), lines, autojunk=False).get_matching_blocks()
    return len(lines) - sum(match.size for match in matches)


def test_four_lines_change_and_no_more_than_with_others():
    assert changed(block(OURS)) == 4
    for other in ("# train.py with accelerate\n", "# train.py with Fabric\n"):
        ast.parse("\n".join(block(other)))
        assert changed(block(OURS)) <= changed(block(other))


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_trains_alike_alone_and_on_ranks(run_cli, clean_env, tmp_path):
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    weights = {}
    for name, fence, ranks in (("plain", PLAIN, 0), ("ours", OURS, 3)):
        folder = tmp_path / name
        folder.mkdir()
        launch = [sys.executable, "-m", "ezpz.launch", "-n", ranks] if ranks else []
        done = run_cli([*launch, sys.executable, HERE / "my_script.py", PAGE, fence, folder], env, 300)
        assert done.returncode == 0, done.stdout + done.stderr
        seen = Counter(int(number) for file in folder.glob("seen-*") for number in file.read_text().split())
        weights[name] = [ast.literal_eval(file.read_text()) for file in sorted(folder.glob("weights-*"))]
        # 3 epochs of 13: on 3 ranks with 2 each, 6 + 6 + 1 samples, where two ranks repeat one without weight.
        assert set(seen) == set(range(13))
        assert seen.total() == 39 + (6 if ranks else 0)
    assert weights["ours"][0] == weights["ours"][1] == weights["ours"][2]


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("page", "begin"),
    [(PAGE, OURS), (TRAIN, "import torch\n\nimport ezpz\nfrom ezpz.train import BatchIndices, Cost, Loop")],
)
def test_the_scripts_train_alike_under_every_strategy(run_cli, clean_env, tmp_path, page, begin):
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    strategies = ["ddp", "fsdp", "zero1"]
    (tmp_path / "work").mkdir()
    launch = [sys.executable, "-m", "ezpz.launch", "-n", 2, sys.executable, HERE / "my_script.py"]
    done = run_cli([*launch, page, begin, tmp_path, *strategies], env, 240, cwd=tmp_path / "work")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {
        file.name: ast.literal_eval(file.read_text()) for file in tmp_path.glob("*-[01]") if "seen" not in file.name
    }
    assert sorted(found) == sorted(f"{strategy}-{rank}" for strategy in strategies for rank in (0, 1))
    for weights in found.values():
        assert weights == pytest.approx(found["ddp-0"], abs=1e-5)
    losses = [float(loss) for loss in re.findall(r"\bloss=([0-9.]+)", done.stdout)]
    each = len(losses) // len(strategies)
    assert all(losses[at] > 2 * losses[at + each - 1] for at in range(0, len(losses), each or 1))
    assert bool(losses) == (page == TRAIN)
