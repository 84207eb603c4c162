"""Measure on one GPU what the trainers do, beside the same model in a loop of plain torch and beside the peers' models.

    make gpu                                    the tests marked gpu, and all cases: about 10 minutes
    make gpu PEERS=DIR                          with nanoGPT, torchtitan and pytorch-image-models, checkouts in DIR
    make gpu ARGS="--only gpt2 --minutes 3"     a part

Both sides of a pair lie on the card at once (where they fit; else one rests in the host's memory) and take turns,
A B A B A, so that a warm minute of the card meets both. A turn counts with the rates of its parts, between events of
the card, so that nothing waits there; the figure of a pair is the rate of A by that of B (1: as fast), with its 95 %
interval by the bootstrap. What is written: gpu.json and gpu.md in --out. Without a GPU nothing is written.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ORDER = "ABABA"
PARTS = 4  # of a turn: each gives a rate
WARM = 2  # steps at the begin of a turn that count in no part
RESAMPLES = 2000
TESTS_SHARE, TESTS_LEAST = 0.25, 200.0  # of the minutes; seconds: a device has to be idle for 60 of them


@dataclass
class Case:
    """One model, and how it is trained.

    Attributes:
        build: Makes the model.
        batches: Position to batch, on the device.
        loss: From model and batch to a mean loss.
        by_hand: FLOPs of one sample by the formula written out, without `ezpz.train`.
        compile: "blocks": ours by `wrap_model`, the peer's whole model; "all": model and loss as one graph everywhere.
        peer: Name, what makes its model from its folder, and what makes a side of that.
    """

    name: str
    build: object
    batches: object
    loss: object
    batch_size: int
    tokens: int
    by_hand: float
    dtype: str = "bf16"
    compile: str = ""
    recompute: str | None = None
    peer: tuple | None = None
    stand_in: bool = False


@dataclass
class Side:
    """One of the two that take turns.

    Attributes:
        run: Queues so many steps.
        tokens: Of one step; samples where there are no tokens.
        every: Steps of a part.
        borders: Of the parts of a turn: events on the card, or seconds.
    """

    name: str
    batches: object
    tokens: int
    model: object
    optimizer: object
    run: object = None
    every: int = 0
    borders: list = field(default_factory=list)
    asked: int = 0
    first: float = 0.0
    peak: int = 0
    rates: list = field(default_factory=list)
    joules: list = field(default_factory=list)
    steps: int = 0
    mfu: list = field(default_factory=list)
    close: object = None

    def batch(self, position):
        """Return a batch, and note where a part begins: a side asks for one at the same place of all its steps."""
        if self.every and self.asked >= WARM and (self.asked - WARM) % self.every == 0:
            self.borders.append(border())
        self.asked += 1
        return self.batches(position)


# The cases.


def cases(stand_in):
    import torch

    import ezpz
    from ezpz.models import GPT, LLAMA_SIZES, GPTConfig, Llama, VisionTransformer, ViTConfig

    device = ezpz.device()
    chance = torch.Generator().manual_seed(1)

    def pairs(inputs, targets):
        inputs, targets = inputs.to(device), targets.to(device)
        return lambda position: (inputs[position % len(inputs)], targets[position % len(inputs)])

    def tokens(vocabulary, batch, length):
        found = torch.randint(vocabulary, (4, batch, length + 1), generator=chance)
        return pairs(found[..., :-1].contiguous(), found[..., 1:].contiguous())

    def next_token(model, batch):
        logits = model(batch[0])
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[1].flatten())

    def gpt2(name, batch):
        layers, heads, width, length, vocabulary = (2, 2, 32, 16, 64) if stand_in else (12, 12, 768, 1024, 50304)
        config = GPTConfig(vocab_size=vocabulary, n_layer=layers, n_head=heads, n_embd=width, block_size=length)
        weights = 12 * layers * width**2 + vocabulary * width
        hand = (6 * weights + 12 * layers * width * length) * length
        sizes = {"n_layer": layers, "n_head": heads, "n_embd": width, "block_size": length, "vocab_size": vocabulary}
        return Case(
            *(name, lambda: GPT(config), tokens(vocabulary, batch, length), next_token, batch, length, hand),
            compile="all",
            peer=("nanoGPT", lambda folder: nanogpt_model(folder, sizes), nanogpt),
        )

    def llama(name, *, compiled):
        config = LLAMA_SIZES["debug"] if stand_in else replace(LLAMA_SIZES["8b"], n_layers=8, max_seq_len=8192)
        length = 32 if stand_in else 8192
        width, kv = config.dim, config.n_kv_heads * config.head_dim
        layer = 2 * width * width + 2 * width * kv + 3 * width * config.ffn_dim
        weights = config.n_layers * layer + config.vocab_size * width
        hand = (6 * weights + 12 * config.n_layers * width * length) * length
        return Case(
            *(name, lambda: Llama(config), tokens(config.vocab_size, 1, length), next_token, 1, length, hand),
            compile="all" if compiled else "",
            recompute="op",
            peer=("torchtitan", lambda folder: torchtitan_model(folder, config), torchtitan),
        )

    def vit():
        sizes = (32, 8, 2, 2, 32, 10) if stand_in else (224, 16, 24, 16, 64, 1000)
        image, patch, depth, heads, head_dim, classes = sizes
        batch, width, seen = 4 if stand_in else 128, heads * head_dim, (image // patch) ** 2
        hand = seen * (6 * (12 * depth * width**2 + 3 * patch**2 * width) + 12 * depth * width * seen)
        inputs = torch.rand(2, batch, 3, image, image, generator=chance)
        targets = torch.randint(classes, (2, batch), generator=chance)
        return Case(
            *("ViT-L/16", lambda: VisionTransformer(ViTConfig(*sizes)), pairs(inputs, targets)),
            lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]).float(), batch[1]),
            *(batch, 0, hand),
            compile="all",
            peer=("timm", lambda folder: timm_model(folder, stand_in), timm),
        )

    return {
        "gpt2": lambda: gpt2("GPT-2 124M, 12 x 1,024", 2 if stand_in else 12),
        "gpt2large": lambda: gpt2("GPT-2 124M, the largest batch", 4 if stand_in else largest_gpt2()),
        "llama": lambda: llama("Llama 8B cut to 8 layers, eager", compiled=False),
        "llamacompiled": lambda: llama("Llama 8B cut to 8 layers, compiled", compiled=True),
        "vit": vit,
    }


def largest_gpt2():
    """Sequences of 1,024 that are expected to fit: logits of 50,304 words are kept some four times in float32."""
    import ezpz

    held = 124e6 * 16 + 4e9
    each = 1024 * 50304 * 4 * 4 + 12 * 1024 * 768 * 2 * 20
    return max(12, min(96, int((ezpz.total_memory() * 0.8 / 2 - held) / each) // 4 * 4))


# The sides: ours, the same model in a plain loop, and the peers' models in their own kind of loop.


def wrapped(case, stand_in):
    """Our model and its optimizer; the weights are drawn on the card."""
    import torch

    import ezpz

    torch.manual_seed(1)
    with torch.device("meta"):
        model = case.build()
    model = ezpz.wrap_model(
        *(model, "none"),
        dtype="fp32" if stand_in else case.dtype,
        compile=case.compile == "blocks" and not stand_in,
        activation_checkpoint=case.recompute,
    )
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def loss_of(case, stand_in):
    from ezpz import train

    return train.compile_loss(case.loss) if case.compile == "all" and not stand_in else case.loss


def ours(case, stand_in, folder):
    import ezpz
    from ezpz import train

    model, optimizer = wrapped(case, stand_in)
    compute_loss = loss_of(case, stand_in)
    history, done, side = ezpz.History("gpu", folder), 0, None
    cost = train.Cost(case.by_hand, tokens_per_sample=case.tokens, dtype="fp32" if stand_in else case.dtype)

    def keep(row):
        side.mfu.extend([row["mfu"]] if "mfu" in row else [])
        return row

    def run(steps):
        nonlocal done
        loop = train.Loop(
            *(model, optimizer, compute_loss, side.batch),
            start=done,
            steps=done + steps,
            batch_size=case.batch_size,
            cost=cost,
            log_every=10**9,
            dtype="fp32" if stand_in else case.dtype,
            row=keep,
            log=str,  # nothing is printed
        )
        loop.run(history)
        done += steps

    close = lambda: history.finalize(plots=False, show=False)  # noqa: E731  # one expression
    side = Side("ezpz.train.Loop", case.batches, case.batch_size * max(1, case.tokens), model, optimizer)
    side.run, side.close = run, close
    return side


def plain(case, stand_in):
    model, optimizer = wrapped(case, stand_in)
    compute_loss = loss_of(case, stand_in)
    return by_hand_loop("plain torch", case, model, optimizer, lambda batch: compute_loss(model, batch))


def by_hand_loop(name, case, model, optimizer, loss_of):
    """A loop as one writes it: what is measured is the step."""
    position = 0
    side = Side(name, case.batches, case.batch_size * max(1, case.tokens), model, optimizer)

    def run(steps):
        nonlocal position
        for _ in range(steps):
            loss_of(side.batch(position)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            position += 1

    side.run = run
    return side


def in_bf16(module, stand_in, compiled):
    """A peer's model as its own script runs it: float32 weights, autocast, compiled or not."""
    import torch

    import ezpz

    module = module.to(ezpz.device()).train()
    called = torch.compile(module) if compiled and not stand_in else module
    autocast = torch.autocast(ezpz.device().type, torch.bfloat16, enabled=not stand_in)

    def call(*inputs):
        with autocast:
            return called(*inputs)

    return module, call


def nanogpt_model(folder, sizes):
    """Make nanoGPT's model, without the dropout and the biases."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.GPT(module.GPTConfig(**sizes, dropout=0.0, bias=False))


def nanogpt(make, case):
    """nanoGPT's model and optimizer as its ``bench.py`` trains them."""
    model, call = in_bf16(make(), case.stand_in, case.compile)
    kind = next(model.parameters()).device.type
    optimizer = model.configure_optimizers(weight_decay=1e-2, learning_rate=1e-4, betas=(0.9, 0.95), device_type=kind)
    return by_hand_loop("nanoGPT", case, model, optimizer, lambda batch: call(*batch)[1])


@contextmanager
def importable(folder):
    """Let modules be imported from a checkout; without one they are as installed."""
    if folder is not None:
        sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if folder is not None:
            sys.path.remove(str(folder))


def torchtitan_model(folder, config):
    """Make torchtitan's Llama 3 of the sizes of ours."""
    with importable(folder):
        from torchtitan.models.llama3.model.args import TransformerModelArgs
        from torchtitan.models.llama3.model.model import Transformer

    # Its own rule for the feed-forward: two thirds of 4 x dim, x the multiplier, up to a multiple of 1,024.
    args = TransformerModelArgs(
        dim=config.dim,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        vocab_size=config.vocab_size,
        ffn_dim_multiplier=1.3,
        multiple_of=1024,
        rope_theta=500000,
        max_seq_len=config.max_seq_len,
    )
    return Transformer(args)


def torchtitan(make, case):
    """torchtitan's model; `ezpz` recomputes products, as torchtitan's option ``op`` chooses them."""
    import torch

    import ezpz
    from ezpz.dist.recompute import recompute_blocks

    with torch.device("meta"):
        model = make()
    model.to_empty(device=ezpz.device())
    with torch.no_grad():
        model.init_weights()
    recompute_blocks(model, list(model.layers.values()), case.recompute)
    model, call = in_bf16(model, case.stand_in, case.compile)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    compute_loss = loss_of(case, case.stand_in)
    return by_hand_loop("torchtitan", case, model, optimizer, lambda batch: compute_loss(call, batch))


def timm_model(folder, stand_in):
    """Make timm's ViT-L/16."""
    with importable(folder):
        from timm import create_model
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2} if stand_in else {}
    return create_model("vit_large_patch16_224", num_classes=10 if stand_in else 1000, **sizes)


def timm(make, case):
    """timm's model, with the optimizer and the loss of ours."""
    import torch

    import ezpz

    with ezpz.device():
        network = make()
    model, call = in_bf16(network, case.stand_in, case.compile)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    compute_loss = loss_of(case, case.stand_in)
    return by_hand_loop("timm", case, model, optimizer, lambda batch: compute_loss(call, batch))


FOLDERS = {"nanoGPT": "nanoGPT", "torchtitan": "torchtitan", "timm": "pytorch-image-models"}


def side_of_peer(case, folder):
    _, make, side_of = case.peer
    return side_of(lambda: make(folder), case)


def folder_of_peer(case, peers):
    """Return the folder of the peer's checkout (None: as installed), and why there is no peer."""
    name = case.peer[0]
    folder = peers / FOLDERS[name] if peers is not None else None
    if folder is not None and folder.is_dir():
        return folder, ""
    if name == "timm" and importlib.util.find_spec("timm"):
        return None, ""
    where = f"no folder {FOLDERS[name]} in {peers}" if peers is not None else "no PEERS=DIR"
    return None, f"{name} is missing ({where})"


# Turns and figures.


def begin(make):
    """Make a side, do its first step and a few more; note the time of the first and the memory that it takes alone."""
    import ezpz

    gc.collect()
    ezpz.empty_cache()
    before = ezpz.memory_allocated()
    ezpz.reset_peak_memory()
    side = make()
    start = time.perf_counter()
    side.run(1)
    ezpz.synchronize()
    side.first = time.perf_counter() - start
    side.run(3)
    ezpz.synchronize()
    side.peak = ezpz.max_memory_allocated() - before
    return side


def border():
    """Return an event on the card that computes, or the seconds of the host where there is none."""
    import torch

    from ezpz.dist.device import make_event

    event = make_event()
    if event is None:
        return time.perf_counter()
    event.record(torch.cuda.default_stream())  # a batch may be asked for on a stream that copies
    return event


def seconds_between(first, second):
    return second - first if isinstance(first, float) else first.elapsed_time(second) / 1000


def turn(side, seconds, energy):
    """Let a side train for so long; keep the rate of each part, and what it took from the card."""
    import ezpz

    side.every = 0
    ezpz.synchronize()
    start = time.perf_counter()
    side.run(2)
    ezpz.synchronize()
    each = (time.perf_counter() - start) / 2
    side.every, side.asked, side.borders = max(1, round(seconds / PARTS / each)), 0, []
    steps = WARM + PARTS * side.every + 1
    before = energy()
    side.run(steps)
    ezpz.synchronize()
    after = energy()
    taken = [seconds_between(*pair) for pair in zip(side.borders[:-1], side.borders[1:], strict=True)]
    side.rates.extend(side.every * side.tokens / part for part in taken)
    side.steps += steps
    if before is not None and after is not None:
        side.joules.append((after - before) / (steps * side.tokens))


def held_by(side):
    """The tensors that a side keeps between two turns: weights, buffers and the optimizer's state."""
    state = [each for kept in side.optimizer.state.values() for each in kept.values()]
    return [*side.model.parameters(), *side.model.buffers(), *(each for each in state if hasattr(each, "data_ptr"))]


def both_fit(side):
    """Whether another side of this size fits on the card beside this one, which is there."""
    import ezpz

    kept = sum(each.numel() * each.element_size() for each in held_by(side))
    return side.peak + kept < 0.95 * ezpz.total_memory()


def move(side, place):
    """Move a side to the host's memory, or back to the card; its tensors stay the same objects."""
    import ezpz

    side.optimizer.zero_grad(set_to_none=True)
    for each in held_by(side):
        if each.dim():  # a step counter stays where its optimizer put it
            each.data = each.data.to(place)
    gc.collect()
    ezpz.empty_cache()


def interval(first, second):
    """The ratio of two medians, and its 95 % interval."""
    chance = random.Random(1)
    found = sorted(
        statistics.median(chance.choices(first, k=len(first)))
        / statistics.median(chance.choices(second, k=len(second)))
        for _ in range(RESAMPLES)
    )
    middle = statistics.median(first) / statistics.median(second)
    return middle, found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES) - 1]


def figures(side, case, peak):
    import ezpz

    rate = statistics.median(side.rates)
    samples = rate / max(1, case.tokens)
    shown = statistics.median(side.mfu) if side.mfu else None
    return {
        "side": side.name,
        "unit": "tokens/s" if case.tokens else "images/s",
        "rate": rate,
        "mfu_printed": shown,
        "mfu_by_hand": 100 * samples * case.by_hand / peak.flops if peak else None,
        "first_step_s": side.first,
        "peak_bytes": side.peak,
        "joules_each": statistics.mean(side.joules) if side.joules else None,
        "steps": side.steps,
        "device": ezpz.device_name(),
    }


def pair(case, other, options, seconds, energy, folder):  # noqa: PLR0917  # what a pair needs
    """One pair in turns: ours and another side."""
    import ezpz

    first = begin(lambda: ours(case, options.stand_in, folder))
    try:
        apart = options.apart or not both_fit(first)
        if apart:
            say("the side that rests lies in the host's memory: both do not fit on the card")
            move(first, "cpu")
        second = begin(other)
        if apart:
            move(second, "cpu")
        for letter in ORDER:
            side = first if letter == "A" else second
            if apart:
                move(side, ezpz.device())
            turn(side, seconds, energy)
            if apart:
                move(side, "cpu")
    finally:
        first.close()
    peak = ezpz.peak_flops("fp32" if options.stand_in else case.dtype)
    middle, low, high = interval(first.rates, second.rates)
    both = [figures(each, case, peak) for each in (first, second)]
    return {"case": case.name, "ratio": middle, "low": low, "high": high, "sides": both, "compile": case.compile}


def measure(options, folder, result):
    """Measure all pairs; what is known is written after each, so that an end by force loses one pair."""
    import torch

    import ezpz

    found, missing = result["pairs"], result["missing"]
    energy = energy_meter(options.stand_in)
    known = cases(options.stand_in)
    until = options.begun + options.minutes * 60
    for number, name in enumerate(options.only):
        case = known[name]()
        case.stand_in = options.stand_in
        folder_of, why = folder_of_peer(case, options.peers)
        others = [("plain torch", lambda case=case: plain(case, options.stand_in))]
        if why:
            missing.append(f"{case.name}: {why}")
        else:
            others.append((case.peer[0], lambda case=case, folder_of=folder_of: side_of_peer(case, folder_of)))
        left = (until - time.monotonic()) / (len(options.only) - number)
        for at, (label, other) in enumerate(others):
            seconds = min(options.seconds, max(1.0, left / len(others) / len(ORDER) * 0.6))  # compiling takes the rest
            seconds = min(seconds, 0.2) if options.stand_in else seconds
            if time.monotonic() > until and not options.stand_in:
                missing.append(f"{case.name} beside {label}: the {options.minutes:g} minutes were over")
                continue
            say(f"{case.name} beside {label}, {seconds:.0f} s a turn")
            try:
                found.append(pair(case, other, options, seconds, energy, Path(folder, f"{name}-{at}")))
            except Exception as error:  # noqa: BLE001  # a case that does not fit is a line of the table
                missing.append(
                    f"{case.name} beside {label}: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
                )
                traceback.print_exc()
            gc.collect()
            torch.compiler.reset()
            ezpz.empty_cache()
            write(options, result)


def write(options, result):
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (options.out / "gpu.md").write_text(markdown(result), encoding="utf-8")


def energy_meter(stand_in):
    """Return a function that reads the card's joules since its driver was loaded, by NVML; None where there is none."""
    try:
        import pynvml

        import ezpz

        pynvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
        index = int(visible) if visible.isdigit() else ezpz.device().index or 0
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception as error:  # noqa: BLE001  # no NVML, no card, or a card that does not count
        if not stand_in:
            say(f"no joules: {type(error).__name__}: {error}")
        return lambda: None
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000.0


# The tests, and what is written.


def run_tests(options):
    """Run the tests marked gpu in processes of their own; return what pytest says of each."""
    with tempfile.TemporaryDirectory(prefix="ezpz-gpu-") as folder:
        report = Path(folder, "report.xml")
        line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", f"--junitxml={report}"]
        env = {**os.environ, "EZPZ_GPU_STAND_IN": "1" if options.stand_in else ""}
        limit = max(TESTS_LEAST, options.minutes * 60 * TESTS_SHARE) if not options.stand_in else 1500.0  # a hang
        try:
            run = subprocess.run(
                [*line, str(ROOT / "tests/gpu")],
                cwd=ROOT,
                env=env,
                timeout=limit,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return [{"test": "all of them", "outcome": f"over {limit:.0f} s"}]
        if not report.is_file():
            return [{"test": "all of them", "outcome": f"rc {run.returncode}: {(run.stdout + run.stderr)[-800:]}"}]
        return read_report(report)


def read_report(report):
    from xml.etree import ElementTree as ET

    found = []
    for each in ET.parse(report).getroot().iter("testcase"):
        bad = next((part for part in each if part.tag in {"failure", "error", "skipped"}), None)
        outcome = "passed" if bad is None else f"{bad.tag}: {bad.get('message', '')[:300]}"
        found.append({"test": each.get("name"), "outcome": outcome, "seconds": float(each.get("time", 0))})
    return found


def facts():
    import torch

    import ezpz

    driver = ""
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version,power.limit", "--format=csv,noheader"]
        driver = subprocess.run(query, check=False, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        pass
    return {
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "device": ezpz.device_name(),
        "driver and power limit": driver or "unknown",
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip or "none",
        "python": sys.version.split()[0],
        "ezpz": ezpz.__version__,
    }


def markdown(result):
    lines = ["# On a GPU" if not result["stand_in"] else "# The stand-in: a CPU, whose figures mean nothing", ""]
    lines += [f"- {name}: {value}" for name, value in result["facts"].items()]
    lines += ["", "| case | side | rate | MFU printed | by hand | first step | peak memory | joules each | A / B |"]
    lines += ["|---" * 9 + "|"]
    for each in result["pairs"]:
        ratio = f"{each['ratio']:.3f} ({each['low']:.3f} to {each['high']:.3f})"
        for side, last in zip(each["sides"], ("", ratio), strict=True):
            cells = [each["case"], side["side"], f"{side['rate']:,.0f} {side['unit']}"]
            cells += ["-" if side[name] is None else f"{side[name]:.1f} %" for name in ("mfu_printed", "mfu_by_hand")]
            cells += [f"{side['first_step_s']:.1f} s", f"{side['peak_bytes'] / 2**30:.2f} GiB"]
            cells += ["-" if side["joules_each"] is None else f"{side['joules_each']:.3g}", last]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Missing:", ""] * bool(result["missing"]) + [f"- {each}" for each in result["missing"]]
    if result["tests"]:
        lines += ["", "| test | outcome |", "|---|---|"]
        lines += [
            f"| {each['test']} | {each['outcome'].splitlines()[0].replace('|', '/')} |" for each in result["tests"]
        ]
    return "\n".join(lines) + "\n"


def say(text):
    print(f"gpu: {text}", file=sys.stderr, flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["gpt2", "gpt2large", "llama", "llamacompiled", "vit"]
    parser.add_argument("--minutes", type=float, default=9.0, help="for all (9)")
    parser.add_argument("--seconds", type=float, default=60.0, help="a turn at most (60)")
    parser.add_argument("--only", default=",".join(names), help=f"cases, of {','.join(names)}")
    parser.add_argument(
        "--peers", default="", help="folder of the peers' checkouts: nanoGPT, torchtitan, pytorch-image-models"
    )
    parser.add_argument("--out", default=".test/gpu", help="folder of gpu.json and gpu.md (.test/gpu)")
    parser.add_argument("--apart", action="store_true", help="keep one side of a pair on the card at a time")
    parser.add_argument("--no-tests", action="store_true", help="leave the tests marked gpu out")
    parser.add_argument("--stand-in", action="store_true", help="tiny models on the CPU: shows that this program works")
    options = parser.parse_args()
    options.out = Path(options.out)
    options.only = [name for name in options.only.split(",") if name]
    unknown = sorted(set(options.only) - set(names))
    if unknown:
        parser.error(f"unknown cases {unknown}; expected some of {','.join(names)}")
    options.peers = Path(options.peers).expanduser() if options.peers else None
    if options.peers is not None and not options.peers.is_dir():
        parser.error(f"no folder {options.peers} (from --peers); expected one with checkouts of the peers")
    return options


def main():
    options = arguments()
    options.begun = time.monotonic()
    try:
        import torch

        import ezpz
    except ModuleNotFoundError as error:
        print(f"gpu: nothing measured and nothing written: {error.name} is not installed for {sys.executable}")
        return 0
    if options.stand_in:
        os.environ["TORCH_DEVICE"] = "cpu"
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        print("gpu: nothing measured and nothing written: torch sees no GPU here")
        return 0
    tests = [] if options.no_tests else run_tests(options)
    ezpz.setup_torch(seed=1)
    with tempfile.TemporaryDirectory(prefix="ezpz-gpu-") as folder:
        result = {"stand_in": options.stand_in, "facts": facts(), "pairs": [], "missing": [], "tests": tests}
        measure(options, folder, result)
    ezpz.cleanup()
    write(options, result)
    print(markdown(result), end="")
    say(
        f"written: {options.out / 'gpu.json'} and {options.out / 'gpu.md'}, "
        f"after {time.monotonic() - options.begun:.0f} s"
    )
    failed = [each for each in tests if each["outcome"] != "passed" and not each["outcome"].startswith("skipped")]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
