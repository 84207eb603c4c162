"""What two runs have set differently: kinds by name, order, and what is material."""

from ezpz.records.run_record import RunRecord
from ezpz.view.compare.differences import change_of, differences, folded, same, shorten
from ezpz.view.compare.kinds_of_settings import Kind, kind_of
from ezpz.view.compare.setting_differences import why_not

KINDS = {
    Kind.STOCHASTIC: "hidden-dropout model.attn_pdrop drop_path_rate",
    Kind.DATA: "data.drop_last data_path",
    Kind.SCHEDULE: "lr-decay-iters min_lr lrWarmupFrac",
    Kind.OPTIMIZER: "lr learning_rate weight_decay clip_grad",
    Kind.DTYPE: "bf16",
    Kind.ATTENTION: "use_flash_attn",
    Kind.BATCH: "micro_batch_size train.bs",
    Kind.WORLD: "tensor_parallel_size",
    Kind.SEED: "dropout_seed",
    Kind.NUMERICS: "tf32",
    Kind.LENGTH: "train_iters",
    Kind.MODEL: "num_layers",
    Kind.NEVER: "outdir log_interval",
    Kind.OTHER: "colour",
}


def test_a_name_tells_the_kind_of_a_setting():
    expected = {name: kind for kind, names in KINDS.items() for name in names.split()}
    assert {name: kind_of(name) for name in expected} == expected


def test_values_are_the_same_however_tools_write_them():
    equal = [(1, 1.0), (0.1, "0.1"), (True, "true"), (0.3, 0.1 + 0.2), ([1, 2], [1, 2.0])]
    other = [(1795194001234, 1795194001235), ("a", "b"), ([1, 2], [2, 1]), (None, 0)]
    assert [pair for pair in equal if not same(*pair)] == []
    assert [pair for pair in other if same(*pair)] == []


def facts(effective=None, config=None, **more):
    return RunRecord.of({"effective": effective or {}, "config": config or {}, **more})


def test_what_changes_numbers_comes_first_and_what_never_decides_last():
    first = facts(
        {"schedule.class": "A", "dropout.h": 0.0, "model.checksum": "x", "attention.backends": {"flash": True}},
        {"data_path": "/a", "seed": 1, "outdir": "/o1", "name": "only here"},
        environment={"modules": ["gcc/12", "mpi/1"], "mpi": {"version": "4"}, "driver": "1", "nccl": "2.1"},
        versions={"torch": "2.12"},
        host="n1",
    )
    second = facts(
        {"schedule.class": "B", "dropout.h": 0.1, "model.checksum": "y", "attention.backends": {"flash": False}},
        {"data_path": "/b", "seed": 2, "outdir": "/o2"},
        environment={"modules": ["gcc/13", "mpi/1"], "mpi": {"version": "5"}, "driver": "2", "nccl": "2.2"},
        versions={"torch": "2.13"},
        host="n2",
    )
    found = differences(first, second)
    groups = list(dict.fromkeys(item.group for item in found))
    assert groups == [
        *("effective values", "configuration", "modules", "driver", "MPI", "collective library", "versions"),
        "never decides",
    ]
    assert [item.key for item in found[:5]] == [
        *("dropout.h", "schedule.class", "attention.backends.flash", "seed", "data_path")
    ]
    assert {item.key for item in found if item.material} == {"dropout.h", "schedule.class"}
    assert {item.key for item in found if item.group == "never decides"} == {"model.checksum", "outdir", "name", "host"}
    assert next(item for item in found if item.key == "name").change == "only in A"


def test_effective_values_that_only_one_run_has_recorded_are_no_difference():
    assert differences(facts({"dropout.h": 0.1}), facts()) == []
    [item] = differences(facts({"dropout.h": 0.1, "a": 1}), facts({"a": 1}))
    assert (item.change, item.material) == ("only in A", True)
    [item] = differences(facts({"a": 1}), facts({"dropout.h": 0.0, "a": 1}))
    assert not item.material  # a dropout of 0 does nothing
    assert differences(facts({"optimizer.class": "SGD", "dropout.h": 0.1}), facts({"optimizer.class": "SGD"})) == []
    found = differences(facts({"optimizer.class": "SGD", "schedule.class": "X"}), facts({"optimizer.class": "SGD"}))
    assert [(item.key, item.material) for item in found] == [("schedule.class", False)]


def test_without_effective_values_the_configuration_decides():
    found = differences(
        facts(config={"dropout": 0.0, "attn": "flash"}), facts(config={"dropout": "0.1", "attn": "math"})
    )
    assert [(item.key, item.material) for item in found] == [("dropout", True), ("attn", False)]


def test_what_only_counts_or_says_how_it_is_computed_is_not_material():
    def read(number, name):
        return facts(
            {
                "model.devices": {name: 9},
                "model.wrappers": [name],
                "model.buffers": {"float32": number},
                "model.modules": {"Linear": number},
                "model.checksum": name,
                "dropout_places": {"h": number},
                "optimizer.wrappers": [name],
                "optimizer.groups.0.tensors": number,
                "optimizer.groups.0.fused": name == "a",
                "schedule.step": number,
                "attention.layers.0": name,
                "numerics.tf32": name == "a",
                "problems": [name],
            },
            environment={
                "library": {"mpi": name, "nccl": name},
                "system": name,
                "variables": {"OMP_NUM_THREADS": name},
            },
        )

    found = differences(read(1, "a"), read(2, "b"))
    assert len(found) == 18
    assert not any(item.material for item in found)
    groups = {item.key: item.group for item in found}
    assert (groups["library.mpi"], groups["library.nccl"]) == ("MPI", "collective library")
    assert (groups["variables.OMP_NUM_THREADS"], groups["system"]) == ("environment variables", "environment")


def test_what_is_trained_otherwise_is_material_and_other_steps_of_a_schedule_are_not():
    keys = {"model.parameters", "model.class", "model.dtypes.bfloat16", "optimizer.groups.1.weight_decay"}
    keys |= {"schedule.T_max"}
    found = differences(facts(dict.fromkeys(keys, 1)), facts(dict.fromkeys(keys, 2)))
    assert {item.key for item in found if item.material} == keys
    found = differences(facts({"schedule.lr": {"0": 1.0, "50": 0.5}}), facts({"schedule.lr": {"0": 1.0, "60": 0.4}}))
    assert not any(item.material for item in found)
    found = differences(facts({"schedule.lr": {"0": 1.0, "50": 0.5}}), facts({"schedule.lr": {"0": 1.0, "50": 0.4}}))
    assert [(item.key, item.material) for item in found] == [("schedule.lr.50", True)]


def test_equal_differences_of_many_layers_are_one_line():
    ours = {f"dropout.blocks.{layer}.drop": 0.0 for layer in range(24)}
    theirs = dict.fromkeys(ours, 0.1) | {"dropout.blocks.7.drop": 0.2}
    lines = folded(differences(facts(ours), facts(theirs)))
    assert [(line.key, len(line.members)) for line in lines] == [
        ("dropout.blocks.*.drop", 23),
        ("dropout.blocks.7.drop", 1),
    ]


def test_a_change_shows_what_matters_of_long_values():
    ours, theirs = [f"module-{n}/1.0" for n in range(30)], [f"module-{n}/1.0" for n in range(29)] + ["module-29/2.0"]
    [item] = differences(facts(environment={"modules": ours}), facts(environment={"modules": theirs}))
    assert change_of(item, 60) == "-module-29/1.0 +module-29/2.0"
    [item] = differences(facts(config={"x": "a" * 90 + "old"}), facts(config={"x": "a" * 90 + "new"}))
    text = change_of(item, 60)
    assert len(text) <= 60
    assert "old" in text
    assert "new" in text
    assert shorten("abcdefghij", 6) == "ab..ij"


SAMPLES = [
    ({"batch_size": 8}, {"batch_size": 8}, ""),
    ({"batch_size": 8}, {"batch_size": 16}, "batch size 8 in A and 16 in B"),
    ({"bs": 8}, {"bs": 16}, "batch size 8 in A and 16 in B"),
    ({"batch_size": 8, "grad_accum": 2}, {"batch_size": 16}, ""),
    ({"global_batch_size": 64, "micro_batch_size": 2}, {"global_batch_size": 64, "micro_batch_size": 4}, ""),
    ({"global_batch_size": 64}, {"global_batch_size": 32}, "global batch size 64 in A and 32 in B"),
    ({"seq_length": 128}, {"seq_length": 256}, "sequence length 128 in A and 256 in B"),
]


def test_a_step_of_other_samples_cannot_be_compared(subtests):
    for first, second, reason in SAMPLES:
        with subtests.test(f"{first} {second}"):
            told = why_not(facts(config=first), facts(config=second), ("A", "B"))
            assert told.startswith(reason)
            assert bool(told) == bool(reason)


def test_another_world_size_counts_unless_the_batch_makes_up_for_it():
    one, two = {"ranks": {"world_size": 2}}, {"ranks": {"world_size": 4}}
    assert "world size 2 in A and 4 in B" in why_not(facts(**one), facts(**two), ("A", "B"))
    assert not why_not(facts(config={"batch_size": 8}, **one), facts(config={"batch_size": 4}, **two), ("A", "B"))
    assert not why_not(facts(config={"tp": 1}, **one), facts(config={"tp": 2}, **two), ("A", "B"))


OPTIMIZER = {"optimizer.class": "AdamW", "optimizer.lr": 0.1}


def grouped(*groups, **more):
    """Return the effective values of an optimizer with groups of (parameters, weight decay)."""
    values = {"optimizer.class": "AdamW", **more}
    for number, (count, decay) in enumerate(groups):
        head = f"optimizer.groups.{number}"
        values |= {f"{head}.parameters": count, f"{head}.weight_decay": decay, f"{head}.amsgrad": False}
    return facts(values)


GROUPS = [  # of A, of B, what differs
    ([(100, 0.1)], [(80, 0.1), (20, 0.0)], [("optimizer.groups.weight_decay", "0.1 -> 0.1, 0.0 of 20 parameters")]),
    ([(80, 0.1), (20, 0.0)], [(100, 0.0)], [("optimizer.groups.weight_decay", "0.1, 0.0 of 20 parameters -> 0.0")]),
    ([(100, 0.1)], [(80, 0.1), (20, 0.1)], []),
    ([(80, 0.1), (20, 0.0)], [(90, 0.1), (10, 0.0)], [("optimizer.groups.0.parameters", "80 -> 90")]),
]


def test_groups_of_parameters_are_compared_by_what_parameters_get(subtests):
    for first, second, expected in GROUPS:
        with subtests.test(f"{first} {second}"):
            found = differences(grouped(*first), grouped(*second))
            assert [(item.key, change_of(item, 80)) for item in found][: max(1, len(expected))] == expected


def test_of_another_optimizer_its_class_and_rate_come_first():
    one = facts({"optimizer.class": "AdamW", "optimizer.groups.0.amsgrad": False, "optimizer.groups.0.lr": 0.1})
    two = facts({"optimizer.class": "SGD", "optimizer.groups.0.lr": 0.2})
    keys = [item.key for item in differences(one, two)]
    assert keys == ["optimizer.class", "optimizer.groups.0.lr", "optimizer.groups.0.amsgrad"]


def of_schedulers(first, second):
    found = differences(facts({**OPTIMIZER, **first}), facts({**OPTIMIZER, **second}))
    return [(item.key, item.change, item.b, item.kind, item.material) for item in found]


def test_a_scheduler_that_only_one_run_has_is_named_as_that(subtests):
    for mark in ["optimizer.initial_lr", "optimizer.groups.1.initial_lr"]:
        with subtests.test(mark):
            name = "a scheduler that was not given to log_config"
            assert of_schedulers({}, {mark: 0.1}) == [("schedule.class", "only in B", name, Kind.SCHEDULE, True)]
            described = {mark: 0.1, "schedule.class": "StepLR"}
            assert of_schedulers({}, described) == [("schedule.class", "only in B", "StepLR", Kind.SCHEDULE, True)]
            assert of_schedulers({mark: 0.1}, {mark: 0.1}) == []
            assert of_schedulers({mark: 0.1}, {mark: 0.2}) == [(mark, "changed", 0.2, Kind.OPTIMIZER, True)]


def test_a_schedule_that_only_one_run_described_is_no_proof_that_the_other_has_none():
    (found,) = of_schedulers({"optimizer.initial_lr": 0.1}, {"optimizer.initial_lr": 0.1, "schedule.class": "StepLR"})
    assert found[-1] is False
    (found,) = differences(facts({"model.class": "Net"}), facts({"model.class": "Net", "schedule.class": "A"}))
    assert found.material is False
