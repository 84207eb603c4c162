"""A shorter time-out, in four real ranks: one of them stays away from a collective."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

import ezpz
from ezpz.errors import UsageError

SCRIPT = """
    import json, sys, time
    import torch, torch.distributed as dist
    import ezpz

    rank = ezpz.setup_torch(timeout=120)
    mesh = ezpz.init_mesh(tp=2)
    other = dist.new_group()
    took = ezpz.set_timeout(1.0)
    seconds = []
    for group in (mesh.get_group("tp"), dist.group.WORLD) if rank == 0 else ():
        began = time.monotonic()
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except RuntimeError as error:
            assert "imed out" in str(error) or "imeout" in str(error), error
        seconds.append(time.monotonic() - began)
    if rank == 0:
        print("told " + json.dumps([took, *seconds]), flush=True)
    else:
        time.sleep(5)
    dist.barrier(other)  # keeps the time that it was made with
    print("together", flush=True)
"""


@pytest.mark.slow
def test_collectives_of_the_world_and_of_the_mesh_fail_sooner_and_other_groups_do_not(run_cli, clean_env, tmp_path):
    script = tmp_path / "waits.py"
    script.write_text(textwrap.dedent(SCRIPT))
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", 4, sys.executable, str(script)], env, 120)
    assert done.stdout.count("together") == 4, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("told ")]
    took, *seconds = json.loads(line.removeprefix("told "))
    assert took
    assert len(seconds) == 2
    assert all(0.9 <= each < 60 for each in seconds), seconds  # against 120


def test_no_time_is_no_time_out():
    with pytest.raises(UsageError, match="time-out of 0 seconds"):
        ezpz.set_timeout(0)
