"""Healthy launches that look ill, of many kinds: none may have a cause, and stderr is the ranks' own.

    python tests/why/healthy.py [--runs 300] [--first 0] [--jobs 2] [--seed 27] [--cheap] [--score FILE]

A launch follows from seed and number, so that `--seed S --first N --runs 1` repeats one. It counts as a false alarm
when its exit code is not 0, its record has a cause or a finding, or when `launch`, without options that ask for more,
has written anything on stderr besides what its ranks wrote and the lines of its plan (`PLAN_LINES`).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime as dt
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]

from ezpz.why import Facts, diagnose
from lab import flavours, process
from reliability.tables import keep

LAUNCH = [sys.executable, "-m", "ezpz.launch"]
# What `launch` may write on stderr of itself when all is well; `ezpz.launch.session` writes these.
PLAN_LINES = re.compile(
    r"ezpz: (?:\d+ ranks? on \S+ \(.+\), .+|\S+ launcher \(.+\), rendezvous at \S+.*|note: \d+ ranks share \d+ cores)"
)
LATEST = 240  # seconds for one launch


class Kind:
    """One kind of healthy program.

    Args:
        make: Takes a random.Random and an empty folder; returns the words of the ranks, and what a rank writes on
            stderr, in lines, given its number; None in its place where a library may write of its own.
        ranks: How many ranks there may be.
        needs: ``torch``, ``mpich`` or nothing.
    """

    def __init__(self, make, *, ranks=(2, 3, 4), needs=""):
        self.make, self.ranks, self.needs = make, ranks, needs
        self.name = make.__name__.replace("_", " ")

    def problem(self):
        """Why it cannot run here; empty where it can."""
        if self.needs == "torch":
            from importlib.util import find_spec

            return "" if find_spec("torch") else "no torch"
        return (flavours.Flavour("mpich").problem() or "") if self.needs == "mpich" else ""


KINDS = []


def kind(**options):
    def add(make):
        KINDS.append(Kind(make, **options))
        return make

    return add


def silent(_rank):
    return []


def python(folder, program, *, isolated=True, interpreter=sys.executable):
    path = folder / "program.py"
    path.write_text(
        "import os, sys, time\nrank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n" + program
    )
    return [str(interpreter), *(["-I", "-S"] if isolated else []), str(path)]


# Without a library: what ranks do is over in a second.


@kind()
def ends_at_once(draw, _folder):
    return [draw.choice(["true", "hostname"])], silent


@kind()
def writes_on_stderr(draw, folder):
    lines = draw.randrange(1, 200)
    program = f"for i in range({lines}):\n    print(f'rank {{rank}} line {{i}} ' + 'x' * (i % 70), file=sys.stderr)\n"
    return python(folder, program), lambda rank: [f"rank {rank} line {i} " + "x" * (i % 70) for i in range(lines)]


@kind()
def keeps_both_cores_busy(draw, folder):
    seconds = draw.uniform(0.2, 1.5)
    return python(folder, f"end = time.time() + {seconds}\nwhile time.time() < end:\n    sum(range(1000))\n"), silent


@kind()
def has_a_long_first_step(draw, folder):
    program = f"""
import ezpz
time.sleep({draw.uniform(0.5, 2.5)})
for step in range(30):
    ezpz.heartbeat(step)
    time.sleep(0.01)
"""
    return python(folder, program, isolated=False), silent


@kind()
def works_on_rank_0_alone(draw, folder):
    program = f"""
import ezpz
for step in range(5):
    if rank == 0 and step == 3:
        with ezpz.section({draw.choice(["evaluation", "checkpoint"])!r}, timeout=60):
            time.sleep({draw.uniform(0.3, 1.5)})
    open(f'step-{{step}}-{{rank}}', 'w').close()
    while not all(os.path.exists(f'step-{{step}}-{{other}}') for other in range(world)):
        time.sleep(0.01)
    ezpz.heartbeat(step)
"""
    return python(folder, program, isolated=False), silent


@kind()
def leaves_early(draw, folder):
    leaver, stays = draw.randrange(2), draw.uniform(0.3, 1.5)
    return python(folder, f"time.sleep(0 if rank == {leaver} else {stays})\n"), silent


@kind()
def waits_for_its_children(draw, _folder):
    seconds = draw.uniform(0.1, 0.6)
    return ["bash", "-c", f"(sleep {seconds:.2f}; echo late $RANK >&2) & wait"], lambda rank: [f"late {rank}"]


@kind()
def leaves_children_behind(draw, _folder):
    return ["bash", "-c", f"sleep {draw.randrange(20, 60)} >/dev/null 2>&1 & exit 0"], silent


@kind()
def fails_in_parts_that_it_expects_to(draw, folder):
    word = draw.choice(
        ["Killed", "No space left on device", "Segmentation fault", "CUDA error: uncorrectable ECC error"]
    )
    script = f'false || true; ls /no/such/thing 2>/dev/null; echo "{word}: tried again" >&2; exit 0'
    return ["bash", "-c", script], lambda _rank: [f"{word}: tried again"]


@kind()
def becomes_another_program(draw, _folder):
    chain = ["env", f"A={draw.randrange(9)}", "sh", "-c", 'exec nice -n 1 sh -c "echo \\$RANK >&2; exec true"']
    return chain, lambda rank: [str(rank)]


@kind()
def answers_signals(draw, folder):
    program = f"""
import signal
came = []
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
    signal.signal(number, lambda n, _: came.append(n))
    os.kill(os.getpid(), number)
    time.sleep({draw.uniform(0, 0.1)})
assert len(came) == 4
"""
    return python(folder, program), silent


@kind()
def passes_work_from_rank_to_rank(draw, folder):
    program = f"""
for item in range({draw.randrange(2, 8)}):
    while rank and not os.path.exists(f'item-{{item}}-{{rank - 1}}'):
        time.sleep(0.005)
    time.sleep(0.02 * (rank % 3))
    open(f'item-{{item}}-{{rank}}', 'w').close()
"""
    return python(folder, program), silent


@kind()
def kills_a_worker_of_its_own(draw, folder):
    program = f"""
import signal, subprocess
for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)[:{draw.randrange(1, 4)}]:
    child = subprocess.Popen(['sleep', '60'])
    child.send_signal(number)
    assert child.wait() == -number
"""
    return python(folder, program), silent


@kind()
def tries_again_with_less(draw, folder):
    program = f"""
import errno, resource
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, hard))
try:
    bytearray({draw.randrange(2, 9)} << 30)
except MemoryError:
    print('MemoryError: smaller batch', file=sys.stderr)
try:
    with open('/dev/full', 'wb', buffering=0) as file:
        file.write(b'x')
except OSError as error:
    assert error.errno == errno.ENOSPC
    print('OSError: [Errno 28] No space left on device: another folder', file=sys.stderr)
"""
    lines = ["MemoryError: smaller batch", "OSError: [Errno 28] No space left on device: another folder"]
    return python(folder, program), lambda _rank: lines


@kind()
def shows_a_bar_and_odd_bytes(draw, folder):
    program = f"""
for i in range({draw.randrange(5, 40)}):
    os.write(2, f'\\r{{i}} of 40'.encode())
os.write(2, b'\\n')
os.write(2, 'größe \\u2192 \\U0001f642\\n'.encode())
"""
    return python(folder, program), None


@kind()
def catches_an_exception_and_shows_it(draw, folder):
    program = f"""
import traceback
try:
    raise {draw.choice(["ValueError", "ConnectionResetError", "RuntimeError"])}('expected: Connection closed by peer')
except Exception:
    sys.stderr.write(traceback.format_exc().splitlines()[-1] + '\\n')
"""
    return python(folder, program), None


@kind(ranks=(8,))
def has_many_ranks(_draw, _folder):
    return ["true"], silent


@kind()
def cleans_up_in_a_trap(draw, _folder):
    return ["bash", "-c", f"trap 'echo bye >&2' EXIT; sleep {draw.uniform(0, 0.5)}; exit 0"], lambda _rank: ["bye"]


@kind(ranks=(3,))
def has_ranks_of_other_lengths(draw, folder):
    """A sweep: each rank has a task of its own, and none waits for another."""
    return python(folder, f"time.sleep({draw.uniform(0.2, 1.5)} * rank)\n"), silent


# With libraries: each does many things at once, because their import is what costs.


@kind(needs="mpich", ranks=(2,))
def speaks_mpi(draw, folder):
    program = f"""
from mpi4py import MPI
comm = MPI.COMM_WORLD
assert comm.Get_size() == world
for _ in range({draw.randrange(1, 20)}):
    comm.allreduce(comm.Get_rank())
for _ in range({draw.randrange(1, 6)}):  # a master that takes what comes, from whom it may be
    if comm.Get_rank():
        time.sleep({draw.uniform(0, 0.3)})
        comm.send(1, 0)
    else:
        for _ in range(1, world):
            comm.recv(source=MPI.ANY_SOURCE)
if comm.Get_rank() == 0:
    time.sleep({draw.uniform(0, 1)})
comm.Barrier()
"""
    return python(folder, program, isolated=False, interpreter=flavours.Flavour("mpich").python), None


@kind(ranks=(2,))
def records_odd_curves(draw, folder):
    program = f"""
import math, random
import ezpz
draw = random.Random({draw.randrange(1 << 30)})
history = ezpz.History(outdir='run')
loss = 4.0
for step in range({draw.randrange(60, 300)}):
    loss *= 0.99 + 0.012 * (draw.random() - 0.5)
    seen = step % 25 == 24
    history.update(
        {{
            'train/loss': loss + 0.3 * draw.random(), 'val/loss': loss if seen else math.nan,
            'train/grad_norm': draw.expovariate(1.0), 'lr': 1e-3 * min(1, step / 50),
        }},
        step=step,
    )
history.finalize()
"""
    return python(folder, program, isolated=False), None


@kind(needs="torch", ranks=(2,))
def trains_with_torch(draw, folder):
    """A plain script: ranks with other work, two optimizers, a scaler that skips steps, evaluation on rank 0 alone."""
    program = f"""
import torch
import torch.distributed as dist
dist.init_process_group('gloo')
torch.manual_seed({draw.randrange(99)} + rank)
a, b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
first, second = torch.optim.SGD(a.parameters(), 0.01), torch.optim.Adam(b.parameters())
scale = 2.0 ** 16
for step in range({draw.randrange(5, 40)}):
    loss = b(a(torch.randn(8, 4))).pow(2).mean()
    (loss * scale).backward()
    if step % 7 == 3:
        scale /= 2  # a step that a scaler skips: its gradients were not finite
        a.weight.grad.fill_(float('inf'))
    else:
        for each in (*a.parameters(), *b.parameters()):
            each.grad /= scale
            dist.all_reduce(each.grad)
        (first if step % 2 else second).step()
    if step % 7 == 3:
        for each in range(4):
            dist.all_reduce(torch.zeros(4, 4))
    first.zero_grad(), second.zero_grad()
    if step % 10 == 9 and rank == 0:
        time.sleep({draw.uniform(0.1, 0.5)})
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(3), 1)
    else:
        dist.recv(torch.empty(3), 0)
dist.destroy_process_group()
"""
    return python(folder, program, isolated=False), None


@kind(needs="torch", ranks=(2,))
def trains_with_ezpz(draw, folder):
    """A script of ours that records; a NaN means that nothing was measured, and rank 0 ends later."""
    program = f"""
import math
import torch
import ezpz
ezpz.setup_torch()
model = ezpz.wrap_model(torch.nn.Linear(4, 1), dtype='fp32')
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
history = ezpz.History(outdir='run')
for step in range({draw.randrange(10, 60)}):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    history.update({{'train/loss': loss.item(), 'val/loss': loss.item() if step % 10 == 9 else math.nan}}, step=step)
if rank == 0:
    time.sleep({draw.uniform(0, 0.6)})
ezpz.cleanup()
"""
    return python(folder, program, isolated=False), None


@kind(needs="torch", ranks=(2, 3))
def evaluates_and_saves_on_rank_0_alone(draw, folder):
    """The others wait for rank 0 now and then, long enough for windows of arrivals; no step of its own is slow."""
    program = f"""
import math
import torch
import torch.distributed as dist
import ezpz
ezpz.setup_torch()
history = ezpz.History(outdir='run')
model = torch.nn.Linear(4, 1)
for step in range({draw.randrange(110, 140)}):
    time.sleep(0.05)
    for _ in range({draw.choice([1, 3])}):
        dist.all_reduce(torch.ones(8))
    measured = math.nan
    if step % 20 == 19 and rank == 0:
        time.sleep({draw.uniform(0.2, 0.5)})
        torch.save(model.state_dict(), f'step-{{step}}.pt')
        measured = 1 / step
    if step % 20 == 19:
        dist.barrier()
    history.update({{'train/loss': 1 / (1 + step), 'val/loss': measured}}, step=step)
history.finalize()
ezpz.cleanup()
"""
    return python(folder, program, isolated=False), None


@kind(needs="torch", ranks=(3,))
def has_ranks_with_roles(draw, folder):
    """One rank serves and meets the others now and then; these train in a group of their own, and wait for nobody."""
    server, every = draw.randrange(3), draw.randrange(8, 15)
    program = f"""
import torch
import torch.distributed as dist
import ezpz
ezpz.setup_torch()
trainers = dist.new_group([each for each in range(world) if each != {server}])
for step in range(8 * {every}):
    if rank != {server}:
        time.sleep(0.02)
        dist.all_reduce(torch.ones(8), group=trainers)
        dist.all_reduce(torch.ones(4, 4), group=trainers)
    if step % {every} == 0:
        dist.broadcast(torch.ones(2), src={server})
    ezpz.heartbeat(step)
if rank == {server}:
    time.sleep({draw.uniform(0, 1)})
dist.barrier()
ezpz.cleanup()
"""
    return python(folder, program, isolated=False), None


@kind(needs="torch", ranks=(2,))
def trains_two_models_with_a_scaler(draw, folder):
    """Two optimizers take turns, of which each has a loss; half precision overflows at first, and steps are skipped."""
    program = f"""
import torch
import ezpz
ezpz.setup_torch()
torch.manual_seed({draw.randrange(99)})
history = ezpz.History(outdir='run')
models = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)]
optimizers = [torch.optim.Adam(each.parameters(), lr=1e-3) for each in models]
scaler = torch.amp.GradScaler('cpu', init_scale=2.0 ** 127)
compiled = False
for step in range({draw.randrange(60, 120)}):
    turn = step % 2
    if not compiled:
        time.sleep({draw.uniform(0.5, 2)})  # as a compiler does
        compiled = True
    loss = (models[1](models[0](torch.randn(16, 8))) - (1 - turn)).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizers[turn])
    norm = torch.nn.utils.clip_grad_norm_(models[turn].parameters(), 1.0)
    scaler.step(optimizers[turn])
    scaler.update()
    for each in optimizers:
        each.zero_grad()
    name = ('loss_d', 'loss_g')[turn]
    history.update({{name: loss.item(), 'grad_norm': float(norm), 'scale': scaler.get_scale()}}, step=step)
history.finalize()
ezpz.cleanup()
"""
    return python(folder, program, isolated=False), None


@kind(needs="torch", ranks=(2, 3))
def leaves_the_group_early(draw, folder):
    """All leave their group; one ends at once, and the others draw or upload something."""
    program = f"""
import torch
import torch.distributed as dist
import ezpz
ezpz.setup_torch()
for step in range({draw.randrange(3, 30)}):
    dist.all_reduce(torch.ones(8))
dist.barrier()
ezpz.cleanup()
time.sleep(0 if rank == {draw.randrange(2)} else {draw.uniform(0.5, 2)})
"""
    return python(folder, program, isolated=False), None


WAYS = (  # of replicas.py, in which weights or batches are meant to differ or to be the same
    "averages_weights_every_8_steps",
    "trains_a_gan_per_rank",
    "trains_a_gan_with_the_same_noise_on_all_ranks",
    "has_batch_norms_of_each_rank",
    "drops_out_by_rank",
    "evaluates_on_all_ranks",
    "splits_layers_over_ranks",
    "splits_layers_by_hand",
    "takes_its_part_of_each_batch",
)


@kind(needs="torch", ranks=(4,))
def trains_replicas_in_its_own_way(draw, folder):
    program = Path(__file__).with_name("replicas.py")
    return [sys.executable, str(program), str(folder / "runs"), draw.choice(WAYS)], None


@kind(needs="torch", ranks=(2, 3))
def ends_in_its_own_way(draw, folder):
    """A plain script: a late import, a server of requests, and an end by a thread, by atexit, or without ceremony."""
    end = draw.choice(
        [
            "",  # the group is not destroyed
            "dist.barrier(); os._exit(0)",
            "import atexit; atexit.register(time.sleep, 2); dist.destroy_process_group()",
            "import threading; threading.Thread(target=time.sleep, args=[2]).start(); dist.destroy_process_group()",
        ]
    )
    program = f"""
time.sleep({draw.uniform(0, 4)} * (rank == 1))
import torch
import torch.distributed as dist
dist.init_process_group('gloo')
x = torch.zeros(1)
for turn in range({draw.randrange(2, 6)}):
    if rank:
        time.sleep({draw.uniform(0.05, 0.4)} * rank)
        dist.send(x, 0)
    else:
        for _ in range(1, world):
            dist.recv(x)
dist.barrier()
{end}
"""
    return python(folder, program, isolated=False), None


@kind(needs="torch", ranks=(4,))
def has_groups_of_other_speeds(draw, folder):
    """Two groups that never meet until the end; a batch norm in evaluation and a long section on rank 0 alone."""
    program = f"""
import gc
import torch
import torch.distributed as dist
import ezpz
ezpz.setup_torch()
group = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
for step in range({draw.randrange(20, 40)}):
    time.sleep(0.02 + {draw.uniform(0.02, 0.15)} * (rank // 2) + (0.1 if step % 2 == rank % 2 else 0))
    if step % 10 == 0:
        gc.collect()
    dist.all_reduce(torch.ones(2), group=group)
    ezpz.heartbeat(step)
dist.barrier()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)))
for step in range(20):
    model(torch.randn(4, 8)).sum().backward()
    if step == 9 and rank == 0:
        model.eval()
        with torch.no_grad():
            model.module(torch.randn(4, 8))
        model.train()
    if step == 10:
        with ezpz.section('eval', timeout='60s'):
            if rank == 0:
                time.sleep({draw.uniform(1, 4)})
            dist.barrier()
    ezpz.heartbeat(step)
ezpz.cleanup()
"""
    return python(folder, program, isolated=False), None


@kind(needs="torch", ranks=(2,))
def goes_on_with_a_run_and_drops_its_loaders(draw, folder):
    """A run that two histories record, steps that overlap, and loaders with workers that are left in the middle."""
    program = f"""
import math
import torch
import ezpz
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, place):
        time.sleep(0.01)
        return torch.ones(4)
ezpz.setup_torch()
for part in range(2):
    batches = iter(torch.utils.data.DataLoader(Slow(), batch_size=8, num_workers=2))
    for _ in range({draw.randrange(1, 4)}):
        next(batches)
    del batches
    with ezpz.History(outdir='run') as history:
        for step in range(part * 40, part * 40 + 50):
            norm = math.inf if step % 30 == 5 else 1.0
            history.update({{'loss': 3 / (1 + step) + 0.01, 'grad_norm': norm, 'scale': 65536.0}}, step=step)
ezpz.cleanup()
"""
    return python(folder, program, isolated=False), None


CHEAP = [each for each in KINDS if not each.needs and each.name != "records odd curves"]
DEAR = [each for each in KINDS if each not in CHEAP]


class FalseAlarmError(AssertionError):
    """A healthy launch that was not taken for one."""


def chosen(number, *, cheap=False):
    """The kind of a launch: each in turn, and of the dear ones fewer."""
    if cheap:
        return CHEAP[number % len(CHEAP)]
    return DEAR[number // 5 % len(DEAR)] if number % 5 == 4 else CHEAP[number % len(CHEAP)]


def run(number, seed, base, *, cheap=False):
    """Run one healthy launch below the folder `base`, and return its kind.

    Raises:
        FalseAlarmError: It was not taken for healthy.
        LookupError: It cannot run here.
    """
    of = chosen(number, cheap=cheap)
    if of.problem():
        raise LookupError(of.problem())
    draw = random.Random(f"{seed}/{number}")
    folder = Path(tempfile.mkdtemp(prefix=f"{number}-", dir=base))
    words, own = of.make(draw, folder)
    ranks = draw.choice(of.ranks)
    tag = f"ezt-{uuid.uuid4().hex[:12]}"
    home = folder / "home"
    home.mkdir()
    bins = [flavours.Flavour("mpich").bin] if of.needs == "mpich" else []
    env = process.minimal_env(home, tag, *bins, flavours.base_bin())
    line = [*LAUNCH, "-n", str(ranks), *words]
    try:
        done = process.run(line, env, timeout=LATEST, cwd=folder)
    except subprocess.TimeoutExpired as late:
        raise FalseAlarmError(f"{of.name}: not over after {LATEST} s\n{late.stderr}") from None
    left = process.survivors(tag)
    if left:
        raise FalseAlarmError(f"{of.name}: processes outlived it: {left}")
    _judge(of, done, folder, [line for rank in range(ranks) for line in own(rank)] if own else None)
    return of.name


def _judge(of, done, folder, own):
    def alarm(what):
        return FalseAlarmError(
            f"{of.name}: {what}\nstdout: {done.stdout[-2000:]}\nstderr: {done.stderr[-4000:]}\nin {folder}"
        )

    if done.returncode:
        raise alarm(f"exit code {done.returncode}")
    (record,) = (folder / "home").glob(".local/state/ezpz/launches/*/run.json")
    kept = json.loads(record.read_text())
    if kept["state"] != "finished" or kept["cause"] or kept["failures"] or kept["hang"]:
        raise alarm(f"its record says {kept['state']}, {kept['cause']}, {kept['failures']}")
    causes = kept.get("causes") or [
        cause.as_json() for cause in diagnose(Facts.read(str(record.parent), kept.get("run_folder") or ""))
    ]
    if causes:
        raise alarm(f"causes {causes}")
    lines = done.stderr.splitlines()
    others = [line for line in lines if not PLAN_LINES.fullmatch(line)]
    if own is None:
        others, own = [line for line in others if line.startswith("ezpz: ")], []
    if Counter(others) != Counter(own):
        extra, missing = Counter(others) - Counter(own), Counter(own) - Counter(others)
        raise alarm(f"stderr has {list(extra)[:5]} and lacks {list(missing)[:5]}")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=300, help="how many launches")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--jobs", type=int, default=2, help="launches at a time")
    parser.add_argument("--seed", default="27", help="from which they follow")
    parser.add_argument("--cheap", action="store_true", help="only those without libraries")
    parser.add_argument("--score", type=Path, help="file that keeps how many there were")
    args = parser.parse_args(argv)
    began, counts, alarms, missing = time.monotonic(), Counter(), [], Counter()
    with (
        tempfile.TemporaryDirectory(prefix="ezpz-healthy-") as base,
        concurrent.futures.ThreadPoolExecutor(args.jobs) as pool,
    ):
        tasks = {
            pool.submit(run, number, args.seed, base, cheap=args.cheap): number
            for number in range(args.first, args.first + args.runs)
        }
        for task in concurrent.futures.as_completed(tasks):
            try:
                counts[task.result()] += 1
            except LookupError as problem:
                missing[str(problem)] += 1
            except FalseAlarmError as alarm:
                alarms.append(tasks[task])
                print(
                    f"FALSE ALARM, repeat with --seed {args.seed} --first {tasks[task]} --runs 1: {alarm}", flush=True
                )
            except Exception:  # noqa: BLE001  # a fault of this file must not hide the other launches
                alarms.append(tasks[task])
                print(f"number {tasks[task]}: {traceback.format_exc()}", flush=True)
            ran = sum(counts.values()) + len(alarms)
            if ran % 20 == 0:
                print(f"{ran} ran, {len(alarms)} false alarms, {time.monotonic() - began:.0f} s", flush=True)
    ran = sum(counts.values()) + len(alarms)
    for name, count in sorted(counts.items()):
        print(f"{count:4} {name}")
    for problem, count in missing.items():
        print(f"{count:4} left out: {problem}")
    print(
        f"{len(alarms)} false alarms in {ran} healthy launches of {len(counts)} kinds, {time.monotonic() - began:.0f} s"
    )
    if args.score:
        today = dt.datetime.now(dt.timezone.utc).date().isoformat()
        keep(
            args.score, "healthy", [f"{ran}/{len(alarms)}/{len(counts)}", today, "", os.environ.get("EZPZ_COMMIT", "")]
        )
    return 1 if alarms else 0


if __name__ == "__main__":
    raise SystemExit(main())
