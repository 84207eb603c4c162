import os
import sys

import pytest

import ezpz
from ezpz.errors import MachineError


def plain(monkeypatch, **variables):
    for name in ("EZPZ_FLAVOUR", "EZPZ_HOSTS", "SLURM_JOB_ID", "PBS_JOBID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    info = ezpz.get_dist_info()
    return info["SCHEDULER"], info["JOB_ID"], info["HOSTS"]


def test_the_launchers_answer_counts_where_an_mpi_hides_the_jobs_variables(monkeypatch):
    told = {"EZPZ_FLAVOUR": "MPICH", "EZPZ_HOSTS": "n01,n02", "EZPZ_SCHEDULER": "pbs", "EZPZ_JOBID": "4[2].head"}
    assert plain(monkeypatch, **told, PBS_JOBID="4[2].head") == ("pbs", "4[2].head", ["n01", "n02"])


def test_leftovers_of_a_shell_are_not_the_launchers_answer(monkeypatch):
    assert plain(monkeypatch, EZPZ_HOSTS="old", EZPZ_SCHEDULER="slurm") == ("none", "", [os.uname().nodename])


def test_a_job_whose_hosts_are_lost_does_not_stop_a_training(monkeypatch, capsys):
    assert plain(monkeypatch, PBS_JOBID="1.head") == ("unknown", "", [os.uname().nodename])
    assert "PBS_NODEFILE" in capsys.readouterr().out


def test_a_python_without_torch_is_one_clear_error(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MachineError, match=r"expected a Python with torch\. Run `ezpz_setup_env`"):
        ezpz.setup_torch()
