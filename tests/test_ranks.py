"""Who a process is, from the variables that real launchers set (recorded from MPICH 5.0.2, Open MPI 5.0.11 and 4.1.8,
Intel MPI 2021.18, Slurm 22.05.8 and torch 2.13)."""

import pytest

from ezpz.errors import RankError
from ezpz.ranks import expand_counts, from_environ

MPICH = {"HYDI_CONTROL_FD": "7", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1", "PMI_FD": "11", "PMI_RANK": "3"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
# As the sites' pages and pytorch/torchcomms#79 tell, and flux-environment(7); not recorded.
AURORA = {"PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2", "PALS_NODEID": "1", "PMIX_RANK": "3"}
PALS = {**AURORA, "PMI_RANK": "3", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2"}
FLUX = {"FLUX_TASK_RANK": "3", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_SIZE": "4", "FLUX_JOB_NNODES": "2", "PMI_RANK": "3"}
STEP = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
    "SLURM_NTASKS": "4",
}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "none",
}
# As deepspeed/launcher/launch.py sets them (0.19.8); not recorded.
DEEPSPEED = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "CROSS_RANK": "1", "CROSS_SIZE": "2"}


FAMILIES = {
    "alone": ({}, (0, 1, 0, 1, 0, "alone")),
    "a wish for 12 ranks is no rank": ({"WORLD_SIZE": "12"}, (0, 1, 0, 1, 0, "alone")),
    "mpich and intel": ({**MPICH, "PMI_SIZE": "4"}, (3, 4, 1, 2, None, "hydra")),
    "open mpi": ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, (3, 4, 1, 4, 0, "openmpi")),
    "pals": (PALS, (3, 4, 1, 2, 1, "pals")),
    "pals without a size": ({**AURORA, "EZPZ_PLACEMENT": "2(x2)"}, (3, 4, 1, 2, 1, "pals")),
    "flux": (FLUX, (3, 4, 1, 2, 1, "flux")),
    "srun with uneven hosts": (STEP, (3, 4, 0, 1, 1, "slurm")),
    "slurm batch script": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "6"}, (0, 1, 0, 1, 0, "alone")),
    "mpi in slurm": ({**MPICH, "PMI_SIZE": "4", "SLURM_PROCID": "0"}, (3, 4, 1, 2, None, "hydra")),
    "torchrun": (TORCHRUN, (3, 4, 1, 2, 1, "contract")),
    "deepspeed's launcher": (DEEPSPEED, (3, 4, 1, 2, None, "contract")),
    "a pod of a PyTorchJob": (
        {"RANK": "1", "WORLD_SIZE": "2", "PET_NNODES": "2", "MASTER_ADDR": "job-master-0"},
        (1, 2, 0, 1, None, "contract"),
    ),
    "one rank by hand": ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1, 0, 1, 0, "contract")),
    "torchrun once per host under mpiexec": (
        {**TORCHRUN, "PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
        (3, 4, 1, 2, 1, "contract"),
    ),
    "torchrun under srun": ({**STEP, **TORCHRUN}, (3, 4, 1, 2, 1, "contract")),
}


def test_a_rank_is_one_tuple_of_one_family(subtests):
    for who, (environ, expected) in FAMILIES.items():
        with subtests.test(who):
            assert tuple(from_environ(environ)) == expected


CONTRADICTIONS = [
    ({"RANK": "0"}, ("WORLD_SIZE=(unset)", "unset RANK")),
    ({"RANK": "0", "WORLD_SIZE": "4"}, ("LOCAL_RANK=(unset)",)),
    ({"RANK": "4", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, ("RANK=4", "rank < world size")),
    ({**OPENMPI}, ("OMPI_COMM_WORLD_LOCAL_SIZE=(unset)",)),
    ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "two"}, ("OMPI_COMM_WORLD_LOCAL_SIZE=two",)),
    (AURORA, ("PALS_SIZE=", "PALS_RANKID=3", "ezpz launch")),
    ({**FLUX, "FLUX_JOB_NNODES": "3"}, ("FLUX_LOCAL_SIZE=", "FLUX_TASK_RANK=3")),
    ({**STEP, "SLURM_NODEID": "7"}, ("SLURM_NODEID=7", "3,1")),
    (
        {**MPICH, "PMI_SIZE": "4", "RANK": "0", "WORLD_SIZE": "1"},
        ("contradict", "rank 0 of 1", "rank 3 of 4", "unset"),
    ),
    ({**MPICH, "PMI_SIZE": "4", "RANK": "0"}, ("contradict", "rank 0 of 4", "rank 3 of 4")),
]


def test_a_contradiction_names_both_sources(subtests):
    for environ, words in CONTRADICTIONS:
        with subtests.test(words=words):
            with pytest.raises(RankError) as caught:
                from_environ(environ)
            assert all(word in str(caught.value) for word in words)
            assert "\n" not in str(caught.value)


def test_counts_expand_as_slurm_writes_them():
    for text, expected in {"2(x3),1": [2, 2, 2, 1], "4": [4], "72(x2),36": [72, 72, 36]}.items():
        assert list(expand_counts(text)) == expected


def test_a_malformed_count_is_refused(subtests):
    for text in ("", "a", "2(3)", "2(x)", "2(x2", "2x2", "-1", "2,,1"):
        with subtests.test(text), pytest.raises(RankError):
            list(expand_counts(text))
