"""Read logs in which a line holds a step and its metrics, behind any prefix of the program's logger.

    [2024-07-17 07:43:01.573073][INFO][trainer:885] - step=10 loss=3.154310 dt=0.282833
    [2026-11-20 16:20:01.123][I][train:45] iter=3 train/loss=0.123456(±0.02)
    step: 100, loss: 2.31, lr: 3e-4
    iter 250: loss 3.0412, time 151.20ms, mfu 5.41%
    [rank0]:[titan] 2026-01-02 03:00:01,123 - root - INFO - step:  1  loss:  4.96778  tps: 7,012  mfu: 0.17%
    {"step": 3, "loss": 0.5}
     iteration        3/     200 | elapsed time per iteration (ms): 1234.5 | lm loss: 4.967783E+00 |
     validation loss at iteration 100 | lm loss value: 4.0E+00 | lm loss PPL: 5.4E+01 |
    {'loss': '4.9678', 'grad_norm': '1.5', 'learning_rate': '1e-05', 'epoch': '0.02'}
    steps: 3 loss: 4.9678 iter time (s): 0.123 samples/sec: 130.1
    [epoch=0][batch=3/200]:
        Train time/batch: 3
        Train loss/train/total: 4.9678

The last six are of torchtitan (components/metrics.py), of JSON lines, of Megatron-LM (training_log and
evaluate_and_print_results in megatron/training/training.py), of Hugging Face (PrinterCallback of transformers), of
DeepSpeed (runtime/pipe/engine.py) and of Composer (loggers/console_logger.py).

A pair is a name, ``=``, ``:`` or (between commas) a blank, and a number, which a unit may follow. The step is ``step``,
``global_step``, ``num_updates`` (fairseq), ``current_steps`` (LLaMA-Factory), ``iter``, ``iteration``, ``it`` or
``epoch``, whichever is first in this list; a line without one holds no row, those of Hugging Face excepted, which are
counted. Escapes are taken out; of lines that begin with
``[rank=3]``, as those of `ezpz.log` do, or with another label of a rank, only rank 0's count:

    [0]: [rank0]: [default0]:       launch --label; torchrun and its --tee
    [1,0]<stdout>:                  Open MPI's --tag-output, --output tag
     0:   [0]                       srun -l; MPICH's mpiexec -l

The last two may also be the number of a line or of an epoch. Those only rise; ranks write in turns.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from itertools import pairwise
from math import nan
from typing import TYPE_CHECKING

from ezpz.files import open_regular
from ezpz.view.foreign.reading import Reading, make_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from ezpz.track.journal_reader import Row

    _Parsed = tuple[int, dict[str, float], float]  # step, metrics, time

_STEPS = ("step", "global_step", "num_updates", "current_steps", "iter", "iteration", "it", "epoch")
_PER_EPOCH = 10  # lines of one epoch, from which on it does not tell the step of a line
_LONGEST = 1 << 16  # bytes: no line of metrics is longer, and a file without newlines is no log
_DIGITS = 19  # an int of fewer has 64 bits
_TOO_LARGE = 1 << 63  # for an integer
_LOOKED_AT = 5000  # lines in which a log has to show its first row
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PREFIX = re.compile(r"\s*(?:\[[^\]]*\]\s*)+")  # [time][level][file:line]
_RANK = re.compile(r"\[(?:rank|default)[= ]?(\d{1,9})(?:/\d{1,9})?\]", re.IGNORECASE)
_LABEL = re.compile(r"\[(\d{1,9})\]:|\[[^\]\s,]{1,80},(\d{1,9})\]<std(?:out|err)>:")
_NUMBERED = re.compile(r"[ \t]{0,12}(\d{1,9}): |\[(\d{1,9})\] ")  # by a rank, or by something else
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T-](\d\d:?\d\d:?\d\d)(?:[.,](\d{1,6}))?")
_THOUSANDS = r"\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?"
_NUMBER = rf"[-+]?(?:{_THOUSANDS}|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_PAIR = re.compile(
    rf"(?<![\w./-])(?P<name>[A-Za-z_][\w./-]*?)(?:\s?=\s?|:[ \t]{{0,20}}|\s)(?P<number>{_NUMBER})"
    rf"(?:/\d+)?(?P<unit>\s?(?:%|ms|us|µs|s|it/s|tok/s|[GM]i?B)(?!\w))?(?=[\s,;|()\]]|:\s|:$|$)",
    re.IGNORECASE,
)


_FIELD = re.compile(rf"\s*(?P<name>[A-Za-z][\w ]*?)(?P<unit> \(ms\))?:\s*(?P<number>{_NUMBER})\s*$", re.IGNORECASE)
_MEGATRON = re.compile(
    r"(?P<val>validation loss at )?iteration[ \t]{1,20}(?P<step>\d{1,18})(?:/[ \t]{0,20}\d{1,18})?[ \t]{0,20}\|"
)
_DEEPSPEED = re.compile(
    rf"steps: (\d{{1,18}}) loss: ({_NUMBER}) iter time \(s\): ({_NUMBER}) samples/sec: ({_NUMBER})", re.IGNORECASE
)
_OF_DEEPSPEED = ("loss", "iter_time", "samples_per_second")
_COMPOSER = re.compile(r"(?:\[epoch=(?P<epoch>\d{1,9})\])?\[[a-z_]{1,20}=(?P<step>\d{1,18})(?:/\d{1,18})?\]:\s*$")
_COMPOSED = re.compile(
    rf"[ \t]{{1,20}}(?:Train|Eval) (?P<name>[\w./-]{{1,120}}): (?P<number>{_NUMBER})\s*$", re.IGNORECASE
)
_PRINTED = re.compile(rf"'([\w/.@ -]{{1,80}})': '?({_NUMBER})'?(?=[,}}])", re.IGNORECASE)


def is_log(path: Path) -> bool:
    """Tell whether a row shows itself near the beginning of a file."""
    return any(parse_line(line) or _printed(line) for line in _joined(_lines(path, _LOOKED_AT)))


def read_log(path: Path) -> Reading | None:
    """Read a log, or return None if no line of it holds a row.

    A step that is logged again for the same metric begins a further attempt, unless an epoch rose with it: then steps
    are counted through.

    Raises:
        OSError: The file cannot be read.
    """
    found: list[tuple[int | None, _Parsed]] = []
    when, count, counted, by_epoch = nan, 0, False, 0
    for line in _joined(_lines(path)):
        when = _time(line, when)
        parsed = parse_line(line)
        if parsed is None:
            printed = _printed(line)
            if printed is None:
                continue
            count, counted = count + ("loss" in printed), True
            parsed = (max(1, count), printed)
        by_epoch += "epoch" in line and "epoch" not in parsed[1]
        number = _NUMBERED.match(_ESCAPE.sub("", line))
        found.append((int(number[1] or number[2]) if number else None, (*parsed, when)))
    rows = rows_of(_of_one_rank(found))
    if by_epoch > _PER_EPOCH * len({row["step"] for row in rows}):
        return None  # "epoch 1: 10 / 200 loss=…": lines of one epoch that do not say which step they are of
    return Reading("log", path.stem, rows, {"steps_are_counted": True} if counted else {}) if rows else None


def rows_of(found: Iterable[_Parsed]) -> list[Row]:
    """Return the rows of what was logged, each as step, metrics and time, in the order of writing."""
    rows: list[Row] = []
    newest: dict[str, int] = {}
    attempt, offset, epoch = 1, 0, nan
    for raw, values, when in found:
        if any(newest.get(key, raw + offset) > raw + offset for key in values if key != "epoch"):
            if values.get("epoch", nan) > epoch:
                offset = max(newest.values()) + 1 - raw
            else:
                attempt, offset, newest = attempt + 1, 0, {}
        epoch = values.get("epoch", epoch)
        newest.update(dict.fromkeys(values, raw + offset))
        rows.append(make_row(raw + offset, when, dict(values), attempt))
    return rows


def row_of(pairs: Mapping[str, float]) -> tuple[int, dict[str, float]] | None:
    """Return the step of named numbers and the metrics among them, or None where one is missing."""
    name = next((name for name in _STEPS if type(pairs.get(name)) is int), None)
    if name is None:
        return None
    kept = {key: value for key, value in pairs.items() if key not in _STEPS or (key == "epoch" != name)}
    metrics = {key: value for key, value in kept.items() if type(value) is float or abs(value) < _TOO_LARGE}
    step = int(pairs[name])
    return (step, metrics) if set(metrics) - {"epoch"} and abs(step) < _TOO_LARGE else None


def _of_one_rank(found: list[tuple[int | None, _Parsed]]) -> Iterator[_Parsed]:
    """Leave out the rows of other ranks than the first, where numbers before lines are those of ranks."""
    numbers = [number for number, _ in found if number is not None]
    are_ranks = any(later < earlier for earlier, later in pairwise(numbers))
    first = min(numbers, default=0)
    return (parsed for number, parsed in found if not are_ranks or number in {None, first})


def parse_line(line: str) -> tuple[int, dict[str, float]] | None:
    """Return the step of a line and its metrics, or None; ints stay ints."""
    line = _ESCAPE.sub("", line)
    if _is_of_other_rank(line):
        return None
    pairs: dict[str, float] = {}
    prefix = _LABEL.match(line) or _NUMBERED.match(line)
    line = line[prefix.end() :] if prefix else line
    prefix = _PREFIX.match(line)
    line = line[prefix.end() :] if prefix else line
    if line.lstrip().startswith('{"'):
        return _json_row(line)
    megatron = _MEGATRON.search(line)
    if megatron:
        return _megatron_row(megatron, line[megatron.end() :])
    deepspeed = _DEEPSPEED.match(line)
    if deepspeed:
        step, *numbers = deepspeed.groups()
        return row_of({"step": int(step), **dict(zip(_OF_DEEPSPEED, map(_number, numbers), strict=True))})
    for match in _PAIR.finditer(line):
        text = match["number"]
        if match["name"].endswith(".py"):  # train.py:45
            continue
        # A blank is a separator only where commas divide the pairs; else it is between words of a sentence.
        if line[match.end("name")] == " " and line[match.end("name") + 1] != "=" and "," not in line:
            continue
        pairs[match["name"]] = _number(text)
    return row_of(pairs)


def _is_of_other_rank(line: str) -> bool:
    rank, label = _RANK.search(line), _LABEL.match(line)
    return bool((rank and int(rank[1])) or (label and int(label[1] or label[2])))


def _number(text: str) -> float:
    text = text.replace(",", "")
    return int(text) if text.lstrip("+-").isdigit() and len(text) < _DIGITS else float(text)


def _json_row(line: str) -> tuple[int, dict[str, float]] | None:
    try:
        read = json.loads(line)
    except (ValueError, RecursionError):  # of absurd depth
        return None
    return row_of({name: value for name, value in read.items() if type(value) in {int, float}})


def _megatron_row(head: re.Match[str], rest: str) -> tuple[int, dict[str, float]] | None:
    """Return a line of Megatron: names with ``_`` for blanks, times in seconds."""
    pairs: dict[str, float] = {}
    for part in rest.split("|"):
        field = _FIELD.match(part)
        if field:
            name = field["name"].strip().replace(" ", "_")
            name = f"val/{name.removesuffix('_value')}" if head["val"] else name
            pairs[name] = _number(field["number"]) / 1000 if field["unit"] else _number(field["number"])
    return row_of({**pairs, "step": int(head["step"])})


def _printed(line: str) -> dict[str, float] | None:
    """Return the numbers of a dict as Hugging Face's trainers print it; None for others, and for that of the end."""
    line = _ESCAPE.sub("", line)
    start = line.rfind("{'")
    if start < 0 or "'epoch':" not in line or "train_runtime" in line or _is_of_other_rank(line):
        return None
    pairs = {name: _number(text) for name, text in _PRINTED.findall(line[start:])}
    return pairs if {"loss", "eval_loss"} & pairs.keys() else None


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, each block of Composer's as one: ``step=3, loss/train/total=4.9678``."""
    block: dict[str, str] = {}
    for line in lines:
        plain = _ESCAPE.sub("", line)
        inner = _COMPOSED.match(plain) if block else None
        if inner:
            block[inner["name"]] = inner["number"]
            continue
        if block:
            yield _one_line(block)
        head = _COMPOSER.match(plain)
        block = {name: text for name, text in head.groupdict().items() if text is not None} if head else {}
        if not head:
            yield line
    if block:
        yield _one_line(block)


def _one_line(block: dict[str, str]) -> str:
    block["step"] = block.pop("time/batch", block["step"])  # through all epochs
    return ", ".join(f"{name}={text}" for name, text in block.items())


def _time(line: str, before: float) -> float:
    match = _TIME.search(line[:80])
    if match is None:
        return before
    clock = match[2].replace(":", "")
    try:
        stamp = datetime.strptime(f"{match[1]} {clock}.{match[3] or 0}", "%Y-%m-%d %H%M%S.%f")  # noqa: DTZ007  # local time
        return stamp.timestamp()
    except (ValueError, OverflowError):  # no time after all
        return before


def _lines(path: Path, most: int | None = None) -> Iterator[str]:
    with open(path, "rb", opener=open_regular) as file:  # Path.open has no opener
        number = 0
        while (raw := file.readline(_LONGEST)) and (most is None or number < most):
            number += 1
            yield raw.decode(errors="replace")
