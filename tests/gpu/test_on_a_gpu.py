"""What only a device can show, in one process group of one rank: `make gpu` runs it.

With EZPZ_GPU_STAND_IN=1 a CPU takes the device's place: that shows that the tests run, and nothing of a GPU.
"""

import json
import os
import subprocess
import sys
import time

import pytest
import torch

import ezpz
from ezpz.checkpoint import Checkpoints
from ezpz.dist.device import make_event
from ezpz.models import LLAMA_SIZES, Llama
from ezpz.train import Loop
from lab import process

pytestmark = pytest.mark.gpu
STAND_IN = os.environ.get("EZPZ_GPU_STAND_IN") == "1"
SIZE = LLAMA_SIZES["debug"]
OUTSIDE = dict(os.environ)  # without the group of these tests


@pytest.fixture(scope="module", autouse=True)
def _rank():
    if not STAND_IN and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    before = dict(os.environ)
    os.environ["TORCH_DEVICE"] = "cpu" if STAND_IN else "cuda"
    ezpz.setup_torch(seed=1)
    kept = dict(os.environ)
    yield
    ezpz.cleanup()
    for name in kept.keys() - before.keys():
        os.environ.pop(name, None)
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _cache_of_inductor(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch's optimizers set it


def batch_of(position):
    generator = torch.Generator().manual_seed(position)
    tokens = torch.randint(SIZE.vocab_size, (4, 33), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss_of(model, batch):
    logits = model(batch[0]).float().flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, batch[1].flatten())


def trained(folder, steps, wrapped=None, **options):
    """The rows of a training of the small Llama."""
    torch.manual_seed(1)
    model = wrapped if wrapped is not None else ezpz.wrap_model(Llama(SIZE), "none", dtype="fp32")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = []
    loop = Loop(
        *(model, optimizer, loss_of, batch_of),
        steps=steps,
        batch_size=4,
        row=lambda row: rows.append(row) or row,
        **options,
    )
    with ezpz.History("gpu", folder) as history:
        loop.run(history)
        history.finalize(plots=False, show=False)
    return rows


def test_the_group_is_the_devices_and_reduces_there():
    device = ezpz.device()
    assert device.type == ("cpu" if STAND_IN else "cuda")
    assert ("gloo" if STAND_IN else "nccl") in str(torch.distributed.get_backend(torch.distributed.group.WORLD))
    value = torch.ones(3, device=device)
    torch.distributed.all_reduce(value)
    assert value.tolist() == [1.0, 1.0, 1.0]


def test_times_of_events_are_those_of_a_clock_that_waits(tmp_path):
    """Sums over many steps: an event's time of one step may lie between two of the clock's."""
    taken = {}
    for exact in (True, False):
        trained(tmp_path / f"warm-{exact}", 3)
        begin = time.perf_counter()
        rows = trained(tmp_path / str(exact), 20, sync_timing=exact)
        taken[exact] = sum(row["dt"] for row in rows), time.perf_counter() - begin
    assert all(0 < steps <= whole * 1.01 for steps, whole in taken.values())
    if not STAND_IN:
        assert make_event() is not None
        assert taken[False][0] <= taken[True][0] * 1.2  # it never waits


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero1", "none"])
def test_every_strategy_learns_the_same(tmp_path, strategy):
    torch.manual_seed(1)
    wrapped = ezpz.wrap_model(Llama(SIZE), strategy, dtype="fp32")
    model = ezpz.wrap_model(Llama(SIZE), "none", dtype="fp32")
    model.load_state_dict(
        {name: getattr(each, "full_tensor", lambda each=each: each)() for name, each in states(wrapped)}
    )
    ours, plain = (trained(tmp_path / str(at), 4, each) for at, each in enumerate((wrapped, model)))
    assert [row["loss"] for row in ours] == pytest.approx([row["loss"] for row in plain], rel=1e-3)


def states(model):
    return getattr(model, "module", model).state_dict().items()


def test_bf16_computes_near_fp32_with_the_kernel_that_shares_keys(tmp_path):
    losses = []
    for dtype in ("fp32", "bf16"):
        torch.manual_seed(1)
        model = ezpz.wrap_model(Llama(SIZE), "none", dtype=dtype)
        losses.append([row["loss"] for row in trained(tmp_path / dtype, 4, model, dtype=dtype)])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_a_step_queues_its_work_and_waits_for_nothing():
    """torch reports every operation of the step that waits for the device."""
    if STAND_IN:
        pytest.skip("a CPU has no queue")
    model = ezpz.wrap_model(Llama(SIZE), "none", dtype="bf16")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def summed(model, batch):
        return loss_of(model, batch) * batch[1].numel(), batch[1].numel()

    def watch(row):
        return row

    done = []

    def ended():
        done.append(1)
        torch.cuda.set_sync_debug_mode("error" if len(done) == 3 else "default")  # one step, its rows aside

    class Rows:
        def update(self, row, **_):
            return row

    try:
        Loop(model, optimizer, summed, batch_of, steps=4, batch_size=4, row=watch, ended=ended).run(Rows())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(done) == 4


def test_a_checkpoint_continues_with_the_same_numbers(tmp_path):
    torch.manual_seed(1)
    model = ezpz.wrap_model(Llama(SIZE), "none", dtype="fp32")
    optimizer = torch.optim.AdamW(model.parameters())
    saved = Checkpoints(tmp_path / "run", model=model, optimizer=optimizer)
    before = loss_of(model, tuple(each.to(ezpz.device()) for each in batch_of(0))).item()
    saved.save(1)
    saved.wait()
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    assert saved.load(saved.path(1) if hasattr(saved, "path") else next(saved.folder.glob("step-*"))) == 1
    assert loss_of(model, tuple(each.to(ezpz.device()) for each in batch_of(0))).item() == before


def test_memory_figures_are_those_of_torch():
    device = ezpz.device()
    ezpz.reset_peak_memory()
    held = torch.ones(1 << 22, device=device)
    if not STAND_IN:
        assert ezpz.memory_allocated() == torch.cuda.memory_allocated()
        assert ezpz.max_memory_allocated() == torch.cuda.max_memory_allocated()
        assert ezpz.total_memory() == torch.cuda.get_device_properties(device).total_memory
    assert ezpz.max_memory_allocated() >= held.numel() * 4


def test_a_profile_is_written(tmp_path):
    with ezpz.profile("torch:steps=2-4", outdir=tmp_path) as prof:
        for _ in range(12):
            (torch.ones(64, 64, device=ezpz.device()) @ torch.ones(64, 64, device=ezpz.device())).sum()
            prof.step()
    assert any(path.is_file() for path in tmp_path.rglob("*"))


def run(folder, program, *words, **env):
    """The program, started by a command of ezpz outside of the group of these tests."""
    (folder / "program.py").write_text(program)
    line = [sys.executable, "-m", *words, sys.executable, "program.py"]
    env = {**OUTSIDE, **({"TORCH_DEVICE": "cpu"} if STAND_IN else {}), **env}
    return process.run(line, env, cwd=folder, timeout=120)


TWO_RANKS = """
import torch
import ezpz

rank = ezpz.setup_torch(seed=1)
model = ezpz.wrap_model(torch.nn.Linear(8, 8), "ddp", dtype="fp32")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    inputs = torch.full((4, 8), 1.0 + rank + step, device=ezpz.device())
    model(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
mine = [each.detach().sum().item() for each in model.parameters()]
assert ezpz.gather_objects(mine) == [mine, mine]
print(rank, ezpz.device(), torch.distributed.get_backend())
ezpz.cleanup()
"""


@pytest.mark.timeout(240 if not STAND_IN else 1200)
def test_two_ranks_share_the_device(tmp_path):
    """By NCCL where it lets them, else by gloo."""
    words = ("ezpz.launch", "-n", "2", "--oversubscribe")
    done = run(tmp_path, TWO_RANKS, *words)
    if "uplicate GPU" in done.stdout + done.stderr:
        done = run(tmp_path, TWO_RANKS, *words, TORCH_BACKEND="gloo")
    assert done.returncode == 0, done.stderr
    ranks = sorted(line.split()[:2] for line in done.stdout.splitlines() if line[:2] in {"0 ", "1 "})
    assert ranks == [["0", "cpu"], ["1", "cpu"]] if STAND_IN else [["0", "cuda:0"], ["1", "cuda:0"]]


THREE_STEPS = """
import dataclasses
import torch
import ezpz
from ezpz.models import LLAMA_SIZES, Llama

ezpz.setup_torch(seed=1)
model = Llama(dataclasses.replace(LLAMA_SIZES["10m"], n_layers=4, dim=1024, n_heads=8, n_kv_heads=8, ffn_dim=4096))
model = ezpz.wrap_model(model, "none", dtype="bf16")
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
tokens = torch.zeros(2, 128, dtype=torch.int64, device=ezpz.device())
for _ in range(3):
    torch.nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
print("allocated", ezpz.max_memory_allocated())
ezpz.cleanup()
"""


@pytest.mark.timeout(240 if not STAND_IN else 1200)
def test_simulate_tells_what_the_allocator_gives(tmp_path):
    """A CPU's figure is that of the whole process, torch included."""
    told = run(tmp_path, THREE_STEPS, "ezpz", "simulate", "-n", "1", "--no-data", "--json", "--", TORCH_DEVICE="cpu")
    assert told.returncode == 0, told.stderr
    done = run(tmp_path, THREE_STEPS, "ezpz.launch", "-n", "1")
    assert done.returncode == 0, done.stderr
    simulated, allocated = json.loads(told.stdout)["peak"], int(done.stdout.split("allocated ")[1].split()[0])
    assert simulated > 4 * 4 * 50_000_000  # weights, gradients and AdamW's two
    assert simulated < allocated * 1.05
    assert STAND_IN or simulated > allocated * 0.9


ON_THE_CPU = """
import time
import ezpz

history = ezpz.History(name="idle", outdir="run")
end = time.monotonic() + 150
step = 0
while time.monotonic() < end:
    history.update({"loss": 1.0}, step=step)
    step += 1
    time.sleep(0.05)
"""


@pytest.mark.skipif(STAND_IN, reason="a CPU is no device that can be idle")
@pytest.mark.timeout(180)
def test_a_device_that_a_rank_has_and_leaves_idle_is_named(tmp_path):
    (tmp_path / "program.py").write_text(ON_THE_CPU)  # not by `run`: the note is looked for while it goes on
    line = [sys.executable, "-m", "ezpz.launch", "-n", "1", sys.executable, "program.py"]
    begin = time.monotonic()
    with subprocess.Popen(line, cwd=tmp_path, env=OUTSIDE, text=True, stderr=subprocess.PIPE) as launch:
        found = next((said for said in launch.stderr if "was idle for" in said), "")
        took = time.monotonic() - begin
        launch.terminate()
        launch.stderr.read()
    assert "device 0 on " in found
    assert took < 90  # 60 s idle, and the start
