"""The training loop inside real ranks, and in one process what cannot be seen there."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import ezpz
from ezpz.errors import UsageError
from lab import process
from lab.listener import Listener, as_rank

SOURCES = str(Path(ezpz.__file__).parents[1])
IN_RANKS = [str(Path(__file__).with_name(f"in_ranks_{name}.py")) for name in ("loop", "place", "belonging")]
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no", "--timeout=240", *IN_RANKS]


@pytest.fixture
def env(clean_env):
    return {**clean_env, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("ranks", "chosen"), [(1, ""), (2, ""), (4, "not (graph or keeps_its_list or garbage or rates or clock or wishes)")]
)
def test_inside_ranks(run_cli, env, ranks, chosen):
    line = [sys.executable, "-m", "ezpz.launch", "-n", ranks, sys.executable, *PYTEST, "-k", chosen]
    done = run_cli(line, env, 800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks, done.stdout


SCRIPT = """
    import sys, time
    import torch
    import ezpz
    from ezpz.train import Loop

    class Saves:
        def include(self, name, stateful, *, optional=False):
            pass
        def complete(self, **objects):
            pass
        def claim(self):
            pass
        def save(self, step, *, wait=False):
            time.sleep(float(sys.argv[2]))
            print(f"saved {step} {wait}", flush=True)
        def wait(self):
            pass

    def batches(position):
        time.sleep(float(sys.argv[1]))
        if position == 2:
            print("training", flush=True)
        return torch.ones(2, 3)

    ezpz.setup_torch(seed=1)
    model = ezpz.wrap_model(torch.nn.Linear(3, 1), "none", dtype="fp32")
    loop = Loop(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda model, batch: model(batch).mean(), batches,
                steps=2000, batch_size=2, checkpoints=Saves())
    with ezpz.History("stopped", "run") as history:
        loop.run(history)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "save"), [(0.05, 0.0), (2.5, 0.5)], ids=["short steps", "steps longer than the patience"]
)
def test_sigterm_saves_completes_the_records_and_ends_by_the_signal(env, tmp_path, step, save):
    line = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(step), str(save)]
    with subprocess.Popen(
        line, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        for said in run.stdout:
            if said.strip() == "training":
                break
        time.sleep(0.1)
        for _ in range(3):  # as Slurm does at the time limit
            run.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        rest = run.stdout.read()
        assert run.wait(timeout=60) == -signal.SIGTERM, rest
    saved = [text for text in rest.splitlines() if text.startswith("saved")]
    assert len(saved) == 1, rest
    done = int(saved[0].split()[1])
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["state"] == "stopped"
    records = [json.loads(text) for text in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in records if "k" not in row] == list(range(done))
    assert {row.get("k", "") for row in records} <= {"", "sections", "seen"}
    import h5py

    with h5py.File(tmp_path / "run" / "stopped.h5") as file:
        assert len(file["draw"]) == done


class FakeEvent:
    """An event of a device that has come as far as the test says."""

    passed = 0
    made = 0
    waited = 0

    def __init__(self):
        self.number = FakeEvent.made
        FakeEvent.made += 1

    def record(self):
        pass

    def query(self):
        return self.number < FakeEvent.passed

    def synchronize(self):
        FakeEvent.waited += not self.query()
        FakeEvent.passed = max(FakeEvent.passed, self.number + 1)

    def elapsed_time(self, later):
        assert self.query()
        assert later.query()
        return 10.0 * (later.number - self.number)  # ms


@pytest.fixture
def device(monkeypatch):
    FakeEvent.passed = FakeEvent.made = FakeEvent.waited = 0
    monkeypatch.setattr("ezpz.train.clock.make_event", FakeEvent)
    monkeypatch.setattr("ezpz.train.clock.get_torch_device_type", lambda: "xpu")
    return FakeEvent


def test_events_tell_the_parts_of_a_step_when_the_device_has_passed_them(device):
    from ezpz.train.clock import make_clock

    clock = make_clock()
    device.made = 0
    clock.skip()
    for part in ("dtd", "dtf", "dtb", "dtf", "dtb", "dto"):
        clock.mark(part)
    first = clock.stop()
    clock.mark("dtf")
    second = clock.stop()
    assert not first.ready()
    device.passed = 7
    assert first.ready()
    assert not second.ready()
    assert first.read() == pytest.approx({"dt": 0.06, "dtd": 0.01, "dtf": 0.02, "dtb": 0.02, "dto": 0.01})
    assert device.waited == 0
    assert second.read()["dt"] == pytest.approx(0.01)  # begins where the first ended
    assert device.waited == 1


def test_rows_are_recorded_behind_the_device_in_order_and_never_more_than_64_late(device):
    from ezpz.train.clock import make_clock
    from ezpz.train.loop import Measured, Report, Reporting, Rows, Scale

    recorded, shown = [], []

    class Recorder:
        def update(self, row, *, step, summarize):
            assert not summarize
            recorded.append((step, row["loss"]))

    rows = Rows(Recorder(), Scale(2, None, None), Reporting(), first=0, last=999, report=Report(shown.append))
    clock = make_clock()
    device.made = 0
    clock.skip()
    for step in range(200):
        clock.mark("dtf")
        rows.add(Measured(step, ("loss",), [float(step)], clock.stop(), 0.1, 8), {})
        if step == 9:
            assert recorded == []
            device.passed = 6  # the first event is where step 0 begins
            rows.record()
            assert recorded == [(step, float(step)) for step in range(5)]
    assert len(recorded) == 200 - 64
    rows.record(wait=True)
    assert recorded == [(step, float(step)) for step in range(200)]
    assert [text.split()[0] for text in shown] == [f"iter={step}" for step in range(0, 200, 10)]


def test_the_row_of_a_step_that_saved_is_recorded_at_once(device):
    """A run that is killed and resumed from that checkpoint does not do the step again."""
    from ezpz.train.clock import make_clock
    from ezpz.train.loop import Measured, Report, Reporting, Rows, Scale

    recorded = []

    class Recorder:
        def update(self, row, *, step, summarize):
            recorded.append(step)

    rows = Rows(Recorder(), Scale(2, None, None), Reporting(), first=0, last=9, report=Report(lambda _: None))
    clock = make_clock()
    clock.skip()
    for step, between in enumerate(({}, {}, {"dt_save": 0.1})):
        assert recorded == []
        clock.mark("dtf")
        rows.add(Measured(step, ("loss",), [0.0], clock.stop(), 0.1, 8), between)
    assert recorded == [0, 1, 2]


@pytest.mark.slow
def test_an_exception_leaves_the_rows_of_all_steps_before_it(run_cli, env, tmp_path):
    script = """
        import torch, ezpz
        from ezpz.train import Loop

        def batches(position):
            if position == 57:
                raise ZeroDivisionError("no more data")
            return torch.ones(2, 3)

        ezpz.setup_torch(seed=1)
        model = ezpz.wrap_model(torch.nn.Linear(3, 1), "none", dtype="fp32")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loop = Loop(model, optimizer, lambda model, batch: model(batch).mean(), batches, steps=2000, batch_size=2,
                    log_every=1)
        with ezpz.History("ended", "run") as history:
            loop.run(history)
    """
    done = run_cli([sys.executable, "-c", textwrap.dedent(script)], env)
    assert done.returncode == 1
    assert "no more data" in done.stderr
    assert " iter=56 " in [line for line in done.stdout.splitlines() if " iter=" in line][-1]
    assert "── ended failed" in done.stdout
    rows = [json.loads(text) for text in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "k" not in row] == list(range(57))


def test_a_loss_that_is_no_number_is_told_once(monkeypatch):
    from ezpz.train.clock import make_clock
    from ezpz.train.loop import Measured, Report, Reporting, Rows, Scale

    class Recorder:
        def update(self, *args, **more):
            pass

    told = []
    monkeypatch.setattr("ezpz.log.logging.Logger.warning", lambda self, text: told.append(text), raising=False)
    rows = Rows(Recorder(), Scale(1, None, None), Reporting(), first=0, last=9, report=Report(lambda _: None))
    clock = make_clock()
    for step in range(4):
        clock.mark("dtf")
        rows.add(Measured(step, ("loss",), [math.nan], clock.stop(), 0.1, 8), {})
    rows.record(wait=True)
    assert told == ["loss=nan at step 0: the training continues, and is lost."]


def test_an_impossible_number_is_refused_before_anything_runs():
    from ezpz.train import Loop

    with pytest.raises(UsageError, match="unusable accumulate=0"):
        Loop(None, None, None, None, steps=1, batch_size=1, accumulate=0)
    assert os.environ.get("EZPZ_PEAK_FLOPS") is None


def test_a_printed_line_holds_what_its_values_were(capsys):
    from ezpz.log import LaterLines, get_logger
    from ezpz.train.clock import make_clock
    from ezpz.train.loop import Measured, Report, Reporting, Rows, Scale

    class Recorder:
        def update(self, *args, **more):
            pass

    class Sum:
        """A running sum, as a tensor is one."""

        value = 1

        def __str__(self):
            return str(self.value)

    total = Sum()
    clock = make_clock()
    with LaterLines(get_logger("ezpz.train")) as lines:
        how = Reporting(log_every=1, row=lambda row: {**row, "sum": total})
        rows = Rows(Recorder(), Scale(1, None, None), how, first=0, last=9, report=Report(lines))
        for step in range(3):
            clock.mark("dtf")
            rows.add(Measured(step, ("loss",), [0.5], clock.stop(), 0.1, 8), {})
            rows.record()
            total.value += 1
    shown = capsys.readouterr().out.splitlines()
    assert [re.findall(r" sum=(\S+)", text) for text in shown] == [["1"], ["2"], ["3"]]


def test_a_value_that_changes_in_place_before_the_end_of_its_step_is_recorded_as_it_was(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # torch sets it when it is first asked to compile an optimizer
    import torch

    from ezpz.train import Loop

    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    was, recorded = [], []

    class Recorder:
        def update(self, row, **more):
            recorded.append(row["weight"])

    def compute_loss(model, batch):
        weight = model.weight.detach()[0, 0]
        was.append(float(weight))
        return model(batch).mean(), {"weight": weight}

    loop = Loop(model, optimizer, compute_loss, lambda _: torch.ones(1, 1), steps=3, batch_size=1)
    loop.run(Recorder())
    assert recorded == was
    assert len(set(was)) == 3


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("steps", "said"), [(3, "all 3 steps are done in "), (2, "2 steps are asked for and 3 are done in ")]
)
def test_a_start_with_nothing_left_to_train_says_so(monkeypatch, tmp_path, capsys, steps, said):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # as above
    import torch

    from ezpz.train import Loop

    def train(steps, start):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        loop = Loop(
            model,
            optimizer,
            lambda model, batch: model(batch).mean(),
            lambda _: torch.ones(1, 1),
            steps=steps,
            batch_size=1,
            start=start,
        )
        with ezpz.History("mine", tmp_path / "run") as history:
            outcome = loop.run(history)
            history.finalize(plots=False)
        return outcome.steps, capsys.readouterr().out

    done, out = train(3, 0)
    assert done == 3
    assert "nothing was left" not in out
    assert "mine finished: 3 steps in " in out
    done, out = train(steps, 3)
    assert done == 3
    assert f"nothing was left to train: {said}" in out
    assert "name another folder (such as --outdir D) to begin anew" in out
    assert "mine finished: no new step, 3 before, 1 rank " in out
    assert " speed " not in out
    assert " step  " not in out


SECTIONS = """
    import sys
    import torch
    import ezpz
    from ezpz.checkpoint import Checkpoints
    from ezpz.train import Loop, evaluate

    ezpz.setup_torch(seed=1)
    model = ezpz.wrap_model(torch.nn.Linear(3, 1), "none", dtype="fp32")
    optimizer = ezpz.make_optimizer(model, torch.optim.SGD, lr=0.1)
    compute = lambda model, batch: model(batch).pow(2).mean()
    loop = Loop(
        model, optimizer, compute, lambda position: torch.ones(2, 3), steps=2, batch_size=2, save_every=2,
        checkpoints=Checkpoints("run", model=model, optimizer=optimizer), evaluate=lambda: {"val": 1.0},
    )
    with ezpz.History(outdir="run") as history:
        loop.run(history)
    evaluate(model, [torch.ones(2, 3)], compute)
    history.finalize(plots=False)
"""


@pytest.mark.slow
def test_first_step_evaluation_and_saving_are_sections(env, tmp_path):
    listener = Listener()
    environ = {**env, **as_rank(address=listener.address)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SECTIONS)], env=environ, cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    process.wait_until(lambda: listener.of(0)[-1:] == ["end"], 20, "the end of what the rank tells")
    told = [line.partition(" ")[2] for line in listener.of(0) if line.startswith("section")]
    listener.close()
    left = "0 0 "
    saving = ["1800.0 1 checkpoint", left]
    assert told == [
        *("3600.0 1 first step", left),
        *("3600.0 1 evaluation", left),
        *(*saving, *saving),  # save, and the wait at the end
        *("3600.0 1 evaluation", left),
    ]


@pytest.mark.parametrize(("fused", "reads"), [(True, 0), (False, 1)])
def test_an_update_of_float16_reads_nothing_from_the_device_with_a_fused_optimizer(monkeypatch, tmp_path, fused, reads):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch's optimizers set it, and a test leaves nothing
    import torch

    from ezpz.train.loop import make_update

    found, item = [], torch.Tensor.item

    def noted(tensor):
        found.append(Path(sys._getframe(1).f_code.co_filename).name)
        return item(tensor)

    model = torch.nn.Linear(3, 1)
    update = make_update(model, torch.optim.AdamW(model.parameters(), fused=fused), max_norm=1.0, dtype="fp16")
    update.backward(model(torch.ones(2, 3)).sum(), 1.0)
    before = model.weight.detach().clone()
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "item", noted)
        update.step(0.5)
    assert not torch.equal(model.weight, before)
    found = [name for name in found if name != "optimizer.py"]  # a plain AdamW's count of steps lies on the CPU
    assert found == ["grad_scaler.py"] * reads
