"""`launch --explain` and `launch --json`: every word and variable with its reason."""

import json

from ezpz.cluster import Allocation, Devices
from ezpz.launch import LaunchPlan, Placement
from ezpz.launch.cpu_binding import choose_binding
from ezpz.launch.explain import as_json, as_text
from ezpz.launch.flavours import flavour
from ezpz.launch.launcher_choice import Choice
from ezpz.launch.plan import Chosen, Context
from ezpz.launch.rank_variables import communication

HOSTS = ("n01", "n02")
JOB = Allocation("slurm", "7", HOSTS, notes=("a note",), origin={"hosts": "SLURM_JOB_NODELIST"})
PLACEMENT = Placement(HOSTS, (2, 2), "one per device")
ENVIRON = {"NCCL_DEBUG": "INFO", "STALE_CCL": "1", "CCL_OLD": "1"}
PLAN = LaunchPlan(
    PLACEMENT,
    Chosen(
        Choice(flavour("srun"), "/usr/bin/srun", "srun of Slurm job 7", (22, 5, 8)),
        binding=choose_binding("list:0-1:2-3", None, 2),
        communication=communication(ENVIRON, None, JOB, use_site=True, unset=("CCL_OLD",)),
        launcher_args=("--mine",),
    ),
    ("python3", "train.py"),
    environ=ENVIRON,
    context=Context(Devices(2, "cuda", "SLURM_GPUS_ON_NODE"), (2, 2), JOB.origin["hosts"], JOB.notes),
)


def test_the_json_is_whole():
    shown = json.loads(as_json(PLAN))
    assert (shown["hosts"], shown["ranks_per_host"], shown["world_size"]) == (["n01", "n02"], [2, 2], 4)
    assert (shown["flavour"], shown["program"], shown["reason"]) == ("srun", "/usr/bin/srun", "srun of Slurm job 7")
    assert shown["argv"][-2:] == ["python3", "train.py"]
    assert [word for flag in shown["flags"] for word in flag["words"]] == shown["argv"][: -2 - 4]
    assert all(flag["reason"] for flag in shown["flags"])
    assert all(variable["origin"] for variable in shown["variables"].values())
    assert shown["unset"] == {"CCL_OLD": "--unset"}
    assert set(shown["inherited"]) == {"NCCL_DEBUG"}
    assert shown["binding"]["cpus"] == ["0-1", "2-3"]
    names = shown["names_of_ranks"]
    assert names["RANK"] == {"set": True, "origin": "torchrun's contract"}
    assert names["SLURM_PROCID"] == {"set": True, "origin": "srun starts the ranks"}
    assert names["OMPI_COMM_WORLD_RANK"] == {"set": False, "origin": "srun starts the ranks"}
    assert "PMI_RANK" not in names  # a plugin of srun may set it
    assert shown["notes"] == ["a note"]
    assert shown["lines"][0].startswith("env -u CCL_OLD ")


def test_the_table_names_a_reason_for_every_row():
    text = as_text(PLAN)
    parts = dict(part.split("\n", 1) for part in text.split("\n\n"))
    assert list(parts) == [
        "plan",
        "line",
        "variables of all ranks",
        "names of ranks",
        "unset",
        "inherited",
        "notes",
    ]
    assert "--mine  [--launcher-args]" in parts["line"]
    assert "--cpu-bind=mask_cpu:0x3,0xc  [--cpu-bind]" in parts["line"]
    assert "NCCL_DEBUG  INFO  [your environment]" in parts["inherited"]
    assert "SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID" in parts["names of ranks"]
    for name in ("plan", "line", "variables of all ranks", "names of ranks", "unset", "inherited"):
        assert all(row.endswith("]") for row in parts[name].splitlines()), parts[name]
