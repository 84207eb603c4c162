"""What steps saw, from the loop to the journal and back; and data-parallel ranks on identical batches."""

import random

import pytest

from ezpz.track import History
from ezpz.track.identical_batches import batch_findings, read_seen
from ezpz.track.over_ranks.slices import Slicer
from ezpz.track.over_ranks.window import records
from ezpz.track.replica_findings import weight_findings
from ezpz.track.run_reader import open_run
from ezpz.track.step_states import (
    BATCH,
    GRADIENTS,
    INPUTS,
    PRIME,
    WEIGHTS,
    WHERE,
    BatchSeen,
    Seen,
    StepStates,
    factor_of,
    noted,
    packed,
    packed_number,
    together,
    unpacked,
)
from lab.run_folders import leave_run

FORM = "int64[8,128]"


def batch(total, place=0, places=2, form=FORM):
    return BatchSeen(total, form, place, places)


def read(tmp_path, written):
    return read_seen(leave_run(tmp_path, [{"step": step, "k": "seen", "m": content} for step, content in written]))


def test_sums_of_steps_come_back(subtests, tmp_path):
    for first, every in [(0, 1), (120, 1), (0, 10), (7, 3)]:
        with subtests.test(f"from step {first}, every {every}"):
            written, chance = [], random.Random(first)
            keeper = StepStates(lambda *record, to=written: to.append(record), None)
            sums = {first + every * number: chance.getrandbits(32) for number in range(120)}
            for step, total in sums.items():
                keeper.add(step, Seen(batch(total)))
            keeper.write()
            assert len(written) == 3
            found = read(tmp_path, written)
            assert found.sums == sums
            assert found.forms[first] == FORM
            assert found.places == 2


def test_a_gap_and_an_unknown_batch_are_kept_apart(tmp_path):
    written = []
    keeper = StepStates(lambda *record: written.append(record), None)
    for step in (0, 1, 2, 9, 10, 3):
        keeper.add(step, Seen(None if step == 9 else batch(step)))
    keeper.write()
    assert read(tmp_path, written).sums == {0: 0, 1: 1, 2: 2, 10: 10, 3: 3}


def test_of_a_setting_that_changes_in_every_step_a_few_are_kept(tmp_path):
    written = []
    keeper = StepStates(lambda *record: written.append(record), None)
    for step in range(100):
        keeper.add(step, Seen(batch(step), {"torch": step} if step % 50 == 0 else {}, {"lr": 1.0 - step / 100}))
    keeper.write()
    found = read(tmp_path, written)
    assert [step for step, _ in found.settings["lr"]] == [0, 1, 2, 3, 49, 50, 51, 52, 53, 99]
    assert found.generators == {"torch": {0: 0, 50: 50}}


def test_the_first_three_steps_and_every_fiftieth_travel():
    sent = []
    keeper = StepStates(None, lambda *note: sent.append(note))
    for step in range(20, 160):
        keeper.add(step, Seen(batch(step, place=5)))
    assert [(step, unpacked(number)) for step, number in sent] == [
        (step, (5, step)) for step in (20, 21, 22, 50, 100, 150)
    ]
    assert unpacked(packed(batch((1 << 32) - 1, place=(1 << 20) - 1))) == ((1 << 20) - 1, (1 << 32) - 1)


def test_batches_between_two_rows_are_one():
    assert together([batch(1)]) == batch(1)
    assert together([batch(1), batch(2)]) != together([batch(2), batch(1)])
    assert together([batch(1), None]) is None
    assert together([]) is None


def test_a_loop_of_ones_own_records_the_batches_of_a_prepared_loader(tmp_path):
    torch = pytest.importorskip("torch")
    import ezpz

    def train(name, changed=-1):
        data = torch.arange(60, dtype=torch.float32).reshape(60, 1)
        if changed >= 0:
            data[changed] += 1
        loader = ezpz.prepare(torch.utils.data.DataLoader(data, batch_size=2))
        with History(name, outdir=tmp_path / name) as history:
            for epoch in range(2):
                for number, x in enumerate(loader):
                    history.update({"loss": float(x.sum())}, step=epoch * 30 + number, summarize=False)
            history.finalize(plots=False, show=False)
        return read_seen(open_run(tmp_path / name)).sums

    noted.take()
    sums, other = train("one"), train("other", changed=21)
    assert sorted(sums) == list(range(60))
    assert [sums[step] for step in range(30)] == [sums[step] for step in range(30, 60)]
    assert [step for step in sums if sums[step] != other[step]] == [10, 40]


def test_a_history_without_batches_has_no_record_of_them(tmp_path):
    with History("mine", outdir=tmp_path / "run") as history:
        for step in range(120):
            history.update({"loss": 1.0 / (step + 1)}, step=step, summarize=False)
        history.finalize(plots=False, show=False)
    assert '"k":"seen"' not in (tmp_path / "run" / "metrics.jsonl").read_text()


# From all ranks


def windows(of_rank, world, most_ranks=64):
    """Return the records over all ranks of `{rank: {step: (place, sum)}}`."""
    slices = {}
    for rank, seen in of_rank.items():
        slicer = Slicer(rank, 1000)
        for step, (place, total) in seen.items():
            slicer.add(step, {"loss": 1.0, BATCH: packed(batch(total, place))}, None)
        slices[rank] = [slicer.cut()]
    return list(records(slices, world, most_ranks))


def findings(tmp_path, of_rank, world, **options):
    told = windows(of_rank, world, **options)
    return batch_findings(leave_run(tmp_path, [{"step": m["steps"][-1], "k": "ranks", "m": m} for m in told]))


LOOKS = (0, 1, 2, 50)


def like(rank, place, looks=LOOKS):
    return {step: (place, 1000 * rank + step) for step in looks}


def own(rank, looks=LOOKS):
    return like(rank, rank, looks)


def test_two_data_parallel_ranks_with_the_same_batches_are_named(subtests, tmp_path):
    for most_ranks in [64, 2]:
        with subtests.test(f"most_ranks {most_ranks}"):
            of_rank = {0: own(0), 1: own(1), 2: own(2), 3: like(0, 3)}
            (found,) = findings(tmp_path, of_rank, 4, most_ranks=most_ranks)
            assert found["text"] == "ranks 0 and 3 train on identical batches from step 0 on"
            assert (found["kind"], found["ranks"], found["different"], found["looks"]) == ("same-batches", [0, 3], 4, 4)


def test_all_ranks_with_the_same_batches_are_one_finding(tmp_path):
    (found,) = findings(tmp_path, {rank: like(0, rank) for rank in range(12)}, 12)
    assert found["text"].startswith("ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more train on identical batches")


def test_a_step_from_which_on_they_are_the_same_is_told(tmp_path):
    one = {step: (0, step) for step in (0, 1, 2, 50, 100, 150)}
    two = {step: (1, step + (7 if step < 50 else 0)) for step in one}
    (found,) = findings(tmp_path, {0: one, 1: two}, 2)
    assert found["step"] == 50


HEALTHY = [
    {0: own(0), 1: own(1)},
    {0: own(0), 1: like(0, 0)},  # tensor parallel: of one place
    {0: dict.fromkeys(LOOKS, (0, 7)), 1: dict.fromkeys(LOOKS, (1, 7))},  # one batch, again and again
    {0: {step: (0, step % 2) for step in LOOKS}, 1: {step: (1, step % 2) for step in LOOKS}},
    {0: own(0, looks=(0, 1)), 1: {step: (1, step) for step in (0, 1)}},  # two batches are not enough
    {0: own(0), 1: {**like(0, 1), 50: (1, 99)}},  # the last look says otherwise
    {0: own(0)},
]


def test_what_is_no_mistake_is_no_finding(subtests, tmp_path):
    for of_rank in HEALTHY:
        with subtests.test(str(of_rank)[:80]):
            assert findings(tmp_path, of_rank, 2) == []


def test_ranks_that_share_a_place_are_found_with_those_of_another_place(tmp_path):
    """Two places of two ranks each, that all have the same."""
    (found,) = findings(tmp_path, {rank: like(0, rank // 2) for rank in range(4)}, 4)
    assert found["ranks"] == [0, 1, 2, 3]


def test_damaged_records_say_nothing(tmp_path):
    lines = [
        {"step": 1, "k": "seen", "m": {"first": "x", "batches": 3, "set lr": [1]}},
        {"step": 1, "k": "seen", "m": {"first": 0, "batches": "zz", "at": 1, "torch": "x"}},
        {"step": 1, "k": "ranks", "m": {"world": 2, "every": 1, "steps": [1], "keys": {}}},
    ]
    lines[2]["m"]["batches"] = {"x": "0" * 26, "3": "zz"}
    run = leave_run(tmp_path, lines)
    assert batch_findings(run) == []
    assert read_seen(run).sums == {}


# Looks at weights


NAMES = ["embed.weight", "head.weight", "head.bias"]
STEPS = (0, 50, 100)


def apart(ranks, *, weights=None, gradients=None, inputs=None, steps=STEPS, parts=1, world=None):
    """Return the journal of looks before some steps, each sent with the row 50 steps later.

    Args:
        ranks: How many there are.
        weights: `(rank, step)` to what the sums of the three weights are changed by.
        gradients: Likewise to the sum of the gradients, None where there are none; 7 by default.
        inputs: Likewise to the sum of what the model was given; by default nothing is known.
        steps: Of the looks.
        parts: Of the weights, which take turns.
        world: How many ranks the record has.
    """
    slices, lines = {}, []
    for rank in range(ranks):
        slicer = Slicer(rank, 10_000)
        for step in steps:
            changes = (weights or {}).get((rank, step), (0, 0, 0))
            sums = [1000 * number + step + change for number, change in enumerate(changes, 1)]
            columns = {
                WEIGHTS: sum(sums),
                WHERE: sum(factor_of(number) * each for number, each in enumerate(sums)) % PRIME,
            }
            gradient = (gradients or {}).get((rank, step), 7)
            columns |= {} if gradient is None else {GRADIENTS: gradient}
            row = {name: packed_number(step, total) for name, total in columns.items()}
            if inputs:
                row[INPUTS] = packed_number(rank, inputs(rank, step))
            slicer.add(step + 50, {"loss": 1.0, **row}, None)
        slices[rank] = [slicer.cut()]
    for number, step in enumerate(steps):
        content = {"first": step + 50, "looked": step, "part": f"0.{number % parts}", "parts": parts}
        lines.append({"step": step + 50, "k": "seen", "m": {**content, **({} if number else {"names": NAMES})}})
    found = records(slices, world or ranks)
    return [*lines, *({"step": m["steps"][-1], "k": "ranks", "m": m} for m in found)]


def changed(rank, steps, change=(0, 5, 0)):
    return {(rank, step): change for step in steps}


def own_gradients(ranks, steps=STEPS):
    return {(rank, step): 100 * rank + step for rank in range(ranks) for step in steps}


ALL = "though all apply the same gradients"
SEVERAL = "in several weights from embed.weight to head.bias"
APART = [
    (
        apart(2, weights=changed(1, (50, 100))),
        f"ranks 0 and 1 have different weights since a step between 0 and 50, in head.weight alone, {ALL}",
    ),
    (
        apart(4, weights=changed(2, (100,))),
        f"rank 2 has other weights than 3 other ranks since a step between 50 and 100, in head.weight alone, {ALL}",
    ),
    (
        apart(5, weights=changed(0, STEPS, (1, 1, 1)) | changed(3, STEPS, (2, 1, 1))),
        f"ranks 0 and 3 have other weights than 3 other ranks from the first step on, {SEVERAL}, {ALL}",
    ),
    (
        apart(2, weights=changed(1, (50, 100), (0, 0, -1)), gradients={(0, 100): None, (1, 100): None}),
        f"ranks 0 and 1 have different weights since a step between 0 and 50, in head.bias alone, {ALL}",
    ),
]


def test_ranks_with_the_same_gradients_and_other_weights_are_named(subtests, tmp_path):
    for number, (lines, text) in enumerate(APART):
        with subtests.test(text):
            (found,) = weight_findings(leave_run(tmp_path / str(number), lines))
            assert found["text"] == text
            assert found["kind"] == "weights-differ"


NOT_APART = {
    "the same weights": apart(3),
    "a model per rank": apart(2, weights=changed(1, STEPS), gradients=own_gradients(2)),
    "gradients that were averaged once": apart(2, weights=changed(1, STEPS), gradients={(1, 100): 8}),
    "weights that are the same again": apart(2, weights=changed(1, (50,))),
    "no gradients": apart(2, weights=changed(1, STEPS), gradients={(r, s): None for r in (0, 1) for s in STEPS}),
    "one look": apart(2, weights=changed(1, (0,)), steps=(0,)),
    "one rank": apart(1),
    "a rank that has sent nothing": apart(1, world=2),
}


def test_other_weights_by_design_are_no_finding(subtests, tmp_path):
    for name, lines in NOT_APART.items():
        with subtests.test(name):
            assert weight_findings(leave_run(tmp_path / name, lines)) == []


def test_what_the_model_was_given_counts_on_replicas_alone(subtests, tmp_path):
    cases = {
        "the same": ({}, 1, 1),
        "of its own": ({"inputs": lambda rank, step: 1000 * rank + step}, 1, 0),
        "one batch again and again": ({"inputs": lambda _rank, _step: 1}, 1, 0),
        "of other weights": ({"weights": changed(1, (0,))}, 1, 0),
        "a part that was not looked at": ({}, 4, 0),
    }
    for name, (options, parts, expected) in cases.items():
        with subtests.test(name):
            lines = apart(2, **{"inputs": lambda _rank, step: step, **options}, parts=parts)
            found = batch_findings(leave_run(tmp_path / name, lines))
            assert len(found) == expected


def test_damaged_looks_say_nothing(tmp_path):
    lines = apart(2, weights=changed(1, (50, 100)))
    lines[0]["m"] |= {"looked": "x", "names": 3, "parts": -1}
    lines[-1]["m"]["weights"] = {"50": "zz", "x": "1", "100": "-" * 26}
    run = leave_run(tmp_path, lines)
    assert weight_findings(run) == []
    assert batch_findings(run) == []
