"""Every argument of `setup_torch` that changes what happens, in real ranks of one launch."""

import socket
import sys

import pytest

SCRIPT = """
import pathlib, sys, time, torch, ezpz
from ezpz.errors import UsageError
port, timeout = int(sys.argv[1]), float(sys.argv[2]) or None
rank = ezpz.setup_torch(port=port, timeout=timeout, seed=7, tensor_parallel_size=2, device_id=0, verbose=True)
assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(7))
assert (ezpz.get_tensor_parallel_rank(), ezpz.get_tensor_parallel_world_size()) == (rank, 2)
assert (ezpz.get_data_parallel_rank(), ezpz.get_data_parallel_world_size()) == (0, 1)
ezpz.setup_torch(tensor_parallel_size=2)
try:
    ezpz.setup_torch(dp_replicate=2)
except UsageError as error:
    print("refused:", error, flush=True)
over = pathlib.Path("over")
while rank == 1 and not over.exists():
    time.sleep(0.1)
try:
    ezpz.barrier()
except RuntimeError as error:
    print("timed out:", error, flush=True)
over.touch()
"""


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.parametrize(("argument", "variable"), [("5", ""), ("0", "5")], ids=["argument", "variable"])
def test_every_argument_has_its_effect(run_cli, clean_env, tmp_path, argument, variable):
    (tmp_path / "script.py").write_text(SCRIPT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    env = {**clean_env, **({"TORCH_DDP_TIMEOUT": variable} if variable else {})}
    launch = [sys.executable, "-m", "ezpz.launch", "-n", "2", sys.executable]
    done = run_cli([*launch, tmp_path / "script.py", port, argument], env, 90)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "[device='cpu'][rank=0/2][local_rank=0/2][tp:0/2][dp:0/1]" in said
    assert "[device='cpu'][rank=1/2][local_rank=1/2][tp:1/2][dp:0/1]" in said
    assert said.count("refused: setup_torch was called again with another mesh") == 2
    assert "timed out:" in said
    assert "5000ms" in said
