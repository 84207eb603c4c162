"""The plan: the words around the program, the environment of its ranks, and that nothing changes once it is built."""

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping

import pytest

from ezpz.cluster import Allocation
from ezpz.cluster.site import Recognise, Site
from ezpz.fields import as_dict
from ezpz.launch import LaunchPlan, Placement, entry, master
from ezpz.launch.contract import inherited, threads_per_core
from ezpz.launch.cpu_binding import Binding, choose_binding
from ezpz.launch.flavours import flavour
from ezpz.launch.flavours.request import Setting
from ezpz.launch.launcher_choice import Choice
from ezpz.launch.options import parse
from ezpz.launch.plan import SHIM, Chosen
from ezpz.launch.planning import PlanBuilder
from ezpz.launch.rank_variables import communication
from ezpz.launch.run import start
from ezpz.launch.run.supervisor import PORT_TAKEN
from ezpz.launch.survey import survey

ONE = Placement(("localhost",), (2,), "-n")
TWO = Placement(("n01", "n02"), (2, 1), "-n")
NO_JOB = Allocation("none", "", ("localhost",))


def plan(name, placement, **more):
    launcher = Choice(flavour(name) if name else None, "mpiexec", "test")
    how = {name: more.pop(name) for name in ("mpi", "binding", "communication", "site") if name in more}
    return LaunchPlan(placement, Chosen(launcher, **how), **{"command": ("true",), "environ": {}, **more})


def test_hardware_threads_of_one_core_are_counted_once(tmp_path):
    allowed = sorted(os.sched_getaffinity(0))
    siblings = tmp_path / f"cpu{allowed[0]}" / "topology" / "thread_siblings_list"
    siblings.parent.mkdir(parents=True)
    for text, expected in (
        (f"{allowed[0]}", 1),
        (f"{allowed[0]}-{allowed[-1]}", len(allowed)),
        (f"{allowed[0]},4711", 1),  # the other one is not this process's
        ("?", 1),
    ):
        siblings.write_text(f"{text}\n")
        assert threads_per_core(str(tmp_path)) == expected
    assert threads_per_core(str(tmp_path / "none")) == 1


def test_the_shim_is_in_front_of_the_program():
    made = plan("mpich", ONE, command=("x", "a b"))
    assert made.argv()[-6:] == [sys.executable, "-I", "-S", SHIM, "x", "a b"]
    assert made.prefix() == ["mpiexec", "-n", "2", "-launcher", "fork"]


def test_open_mpi_names_the_users_variables_and_ours_for_other_hosts():
    others = ("SSH_AUTH_SOCK", "DISPLAY", "PBS_JOBID", "PWDX", "HOSTNAME_MAP", "MY_OWN")
    foreign = ("PWD", "HOSTNAME", "OMPI_MCA_x", "SLURM_PROCID", "BASH_FUNC_f%%")
    made = plan("openmpi5", TWO, environ=dict.fromkeys((*others, *foreign), "1"), hostfile="/f")
    words = made.argv()
    assert {*others, "MASTER_ADDR", "EZPZ_PLACEMENT"} < set(words)
    assert not set(foreign) & set(words)
    assert "MASTER_ADDR" not in made.prefix()  # a line without our variables: it would warn of each


def test_a_job_that_no_variable_names_is_named_for_the_launcher():
    made = plan("srun", TWO, hostfile="/f", job={"SLURM_JOB_ID": "12"})
    assert made.prefix()[:3] == ["env", "SLURM_JOB_ID=12", "mpiexec"]


def test_a_binding_is_the_launchers_or_the_shims():
    binding = choose_binding("list:0:1", None, 2)
    assert plan("mpich", ONE, binding=binding).variables["EZPZ_CPUS"].value == "0:1"
    assert "EZPZ_CPUS" not in plan("srun", ONE, binding=binding).variables
    local = plan("", ONE, binding=binding)
    assert [local.cpus(0), local.cpus(1), plan("", ONE).cpus(0)] == [[0], [1], None]
    assert plan("mpich", ONE, binding=Binding("auto", (), "--cpu-bind")).variables["EZPZ_CPUS"].value == "auto"


ADVICE = {"environment": {"NCCL_A": "1", "FI_B": "/tmp/{user}-{jobid}", "NCCL_C": "3"}}
ADVICE |= {"environment_unset": ("MPICH_X", "ABSENT"), "launcher": "mpich", "launcher_args": ("-site",)}
SITE = Site("toy", "slurm", recognise=Recognise(), **ADVICE)


def test_the_users_environment_wins_over_the_sites():
    environ = {"NCCL_A": "9", "MPICH_X": "1", "USER": "me", "GLOO_Y": "2", "PATH": "/bin"}
    job = Allocation("slurm", "7", ("localhost",))
    chosen = communication(environ, SITE, job, use_site=True, unset=("NCCL_C", "PATH_X"))
    assert {name: setting.value for name, setting in chosen.settings.items()} == {"FI_B": "/tmp/me-7"}
    assert chosen.unset == {"MPICH_X": "site toy", "NCCL_C": "--unset", "PATH_X": "--unset"}
    assert chosen.inherited["NCCL_A"].origin == "your environment; site toy advises '1'"
    assert "GLOO_Y" in chosen.inherited
    assert "PATH" not in chosen.inherited

    made = plan("mpich", ONE, communication=chosen, environ=environ, site=SITE)
    assert "MPICH_X" not in made.user_environment()
    assert made.user_environment()["NCCL_A"] == "9"
    assert made.variables["FI_B"].value == "/tmp/me-7"
    assert made.prefix()[-1] == "-site"
    assert "-site" not in plan("impi", ONE, site=SITE).prefix()  # they are the words of another launcher
    assert shlex.split(made.lines()[0])[:3] == ["env", "-u", "MPICH_X"]


def test_comm_env_none_takes_nothing_from_the_site_and_still_shows_its_advice():
    chosen = communication({"MPICH_X": "1"}, SITE, NO_JOB, use_site=False, unset=())
    assert not chosen.settings
    assert not chosen.unset
    assert "advises to unset it" in chosen.inherited["MPICH_X"].origin


def test_every_variable_says_who_chose_it():
    assert all(setting.origin for setting in plan("openmpi5", TWO, hostfile="/f").variables.values())


def test_leftovers_of_another_launcher_are_dropped_and_the_users_variables_kept():
    stale = {"RANK": "5", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "EZPZ_CONTROL": "t@1@h", "MINE": "1"}
    assert inherited(stale) == {"MINE": "1"}
    assert inherited({"OMP_NUM_THREADS": "3"}) == {"OMP_NUM_THREADS": "3"}
    assert inherited({"PBS_JOBID": "1", "NCPUS": "64", "OMP_NUM_THREADS": "64"}) == {"PBS_JOBID": "1", "NCPUS": "64"}
    assert inherited({"PBS_JOBID": "1", "NCPUS": "64", "OMP_NUM_THREADS": "8"})["OMP_NUM_THREADS"] == "8"


def test_a_plan_for_ten_thousand_hosts_is_small(tmp_path, subtests):
    hosts = tuple(f"nid{index:06d}" for index in range(10_000))
    for name in ("mpich", "openmpi5", "pals", "srun"):
        with subtests.test(name):
            made = plan(name, Placement(hosts, (12,) * 10_000, "-n"), hostfile=str(tmp_path / "hosts"))
            assert sum(map(len, made.argv())) < 10_000
            assert made.variables["EZPZ_PLACEMENT"].value == "12(x10000)"


# Building plans: one finished plan per start, and the same one for those who only look.


def built(*words, environ=None):
    environ = {"PATH": "/usr/bin:/bin"} | (environ or {})
    options = parse(words, environ)
    return PlanBuilder(survey(options, environ), options, environ)


def test_a_plan_cannot_be_changed(subtests):
    made = built("-n", "2", "true").build()
    for name in LaunchPlan.__slots__:
        with subtests.test(name):
            before = getattr(made, name)
            with pytest.raises(AttributeError, match=f"cannot set {name}: a LaunchPlan does not change"):
                setattr(made, name, "x")
            with pytest.raises(AttributeError, match=name):
                delattr(made, name)
            assert getattr(made, name) is before
            for table in (before, *(before if name == "supervision" else ())):
                if isinstance(table, Mapping):
                    with pytest.raises(TypeError):
                        table["NEW"] = "x"


def test_what_a_plan_was_made_of_can_change_without_it():
    environ, more = {"MINE": "1"}, {"X": Setting("1", "test")}
    made = plan("mpich", ONE, environ=environ, more=more)
    environ["MINE"] = more["X"] = "2"
    assert (made.environ["MINE"], made.variables["X"].value) == ("1", "1")
    with pytest.raises(AttributeError, match="does not change"):
        made.anything = 1


def test_a_second_start_has_a_plan_of_its_own_and_the_first_is_as_it_was():
    builder = built("-n", "2", "--timeout", "1h", "true")
    with builder.choose_rendezvous(must_know=True) as meeting, builder.choose_rendezvous(must_know=True) as another:
        first = builder.build(meeting)
        before = {name: getattr(first, name) for name in LaunchPlan.__slots__}
        second = builder.build(another)
    assert second is not first
    assert all(getattr(first, name) is value for name, value in before.items())
    changed = {name for name, setting in first.variables.items() if second.variables[name] != setting}
    assert changed == {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "EZPZ_RUN_ID", "EZPZ_SOCKET"}
    assert first.variables.keys() == second.variables.keys()
    one, other = first.supervision, second.supervision
    assert (one.launch_id, one.agent_settings) == (other.launch_id, other.agent_settings)


def started(monkeypatch, argv):
    """Return the plans that `launch` would start; the first port is taken."""
    plans, codes = [], iter([PORT_TAKEN, 0])

    def supervise(plan, control, *_, **__):
        plans.append(plan)
        assert plan.supervision.for_agents.get("EZPZ_CONTROL", "") == control.variable
        control.close()
        return next(codes)

    monkeypatch.setattr(start, "supervise", supervise)
    assert entry.main(argv) == 0
    return plans


@pytest.mark.parametrize("flavour_words", [[], ["--flavour", "torchrun"]])
@pytest.mark.parametrize("more", [[], ["--timeout", "1h", "--label", "--unset", "MINE"]])
def test_what_is_shown_is_what_is_started(monkeypatch, tmp_path, capsys, flavour_words, more):
    for name in ("TMPDIR", "HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setattr(os, "urandom", lambda count: b"r" * count)  # the same names, so that all can be compared
    argv = ["-n", "2", *flavour_words, *more, "true", "a b"]
    first, second = started(monkeypatch, argv)
    assert first is not second
    port = second.port.value
    for option in ("--json", "--explain", "--dry-run"):
        monkeypatch.setattr(master, "choose_port", lambda *_: (int(port), second.port.origin, None))
        capsys.readouterr()
        assert entry.main([option, *argv]) == 0
        text = capsys.readouterr().out
        if option == "--json":
            shown = json.loads(text)
            assert shown["variables"] == {name: as_dict(each) for name, each in second.variables.items()}
            assert shown["argv"] == (second.argv() if flavour_words else None)
            assert shown["lines"] == second.lines()
            assert shown["unset"] == dict(second.communication.unset)
        elif option == "--explain":
            rows = {tuple(row.split("  [")[0].split(None, 1)) for row in text.splitlines()}
            assert {(name, setting.value) for name, setting in second.variables.items() if setting.value} <= rows
        else:
            assert text.splitlines() == second.lines()
    assert second.argv()[-2:] == ["true", "a b"]


def test_a_pasted_line_names_nothing_of_a_supervised_run():
    made = built("-n", "2", "--timeout", "1h", "--flavour", "torchrun", "true").build(control="secret@1@here")
    (line,) = made.lines()
    only = {*made.variables} - {*made.portable} | {*made.supervision.for_agents}
    assert {"EZPZ_SOCKET", "EZPZ_CONTROL", "EZPZ_LAUNCH", "EZPZ_RECORDER", "EZPZ_LAUNCH_CMD"} <= only
    assert not [name for name in only if name in line]
    assert made.launcher_environment()["EZPZ_CONTROL"] == "secret@1@here"
    assert "EZPZ_CONTROL" not in made.variables
