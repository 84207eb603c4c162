"""The records are what real schedulers showed real jobs; `tests/shell` holds the shell's answer against them too."""

import json
import os
import time
from pathlib import Path

import pytest

from ezpz.cluster import SCHEDULERS, Allocation, detect
from ezpz.cluster.hostlist import expand
from ezpz.cluster.scheduler import scheduler
from ezpz.errors import EzpzError, MachineError

RECORDS = sorted((Path(__file__).parents[1] / "data" / "environments").glob("*.json"))
HOSTNAME = "/proc/sys/kernel/hostname"


def nothing(_):
    return None


def told(answers):
    """A runner of commands, each of which prints what is written here."""
    return lambda argv: answers.get(" ".join(argv))


def machine(record):
    """`read` and `run` of the machine where a record was made; `run.asked` lists the commands."""
    files = {HOSTNAME: record["hostname"] + "\n", **record["files"]}

    def run(argv):
        run.asked.append(" ".join(argv))
        answer = record["commands"].get(" ".join(argv))
        return answer["stdout"] if answer and answer["rc"] == 0 else None

    run.asked = []
    return files.get, run


def load(name):
    return json.loads(next(path for path in RECORDS if path.stem == name).read_text())


def test_a_recorded_job_is_understood(subtests):
    for path in RECORDS:
        with subtests.test(path.stem):
            record = json.loads(path.read_text())
            read, run = machine(record)

            found = detect(record["env"], read, run)

            expect = record["expect"]
            assert (found.scheduler, found.job_id, list(found.hosts)) == (
                expect["scheduler"],
                expect["job_id"],
                expect["hosts"],
            )
            assert (None if found.slots is None else list(found.slots)) == expect["slots"]
            if "devices" in expect and "SLURMD_NODENAME" not in record["env"]:
                assert found.devices == (expect["devices"],) * len(found.hosts)
            for name in ("scheduler", "job_id", "hosts", *["slots"] * (found.slots is not None)):
                assert found.origin[name], name


def test_no_command_is_run_where_the_variables_and_files_tell_all(subtests):
    for path in RECORDS:
        # The variables of a heterogeneous job tell the devices of component 0 alone.
        if "batch" not in path.stem or path.stem in {"flux-batch", "slurm-batch-het"}:
            continue
        with subtests.test(path.stem):
            record = json.loads(path.read_text())
            read, run = machine(record)
            detect(record["env"], read, run)
            assert run.asked == []


def test_there_are_records_of_both_schedulers():
    assert sum(path.stem.startswith("slurm") for path in RECORDS) >= 15
    assert sum(path.stem.startswith("pbs") for path in RECORDS) >= 5


def test_no_job_is_this_host_alone():
    found = detect({"USER": "me"}, {HOSTNAME: "laptop\n"}.get, nothing)

    assert (found.scheduler, found.job_id, found.hosts, found.slots) == ("none", "", ("laptop",), None)
    assert "no SLURM_JOB_ID" in found.origin["scheduler"]


# ---- Slurm ---------------------------------------------------------------------------------------------------------


def test_a_job_of_several_hosts_of_an_unknown_scheduler_is_a_note(subtests):
    files = {
        HOSTNAME: "c1\n",
        "/pe": "c1 2 all.q@c1 UNDEFINED\nc2 2 all.q@c2 UNDEFINED\n",
        "/one": "c1\n",
        "/two": "c1\nc2\n",
    }
    for environ, said in (
        ({"PE_HOSTFILE": "/pe"}, ("a job of Grid Engine of 2 hosts (from PE_HOSTFILE)", 'launch --hosts "$(cut')),
        ({"COBALT_NODEFILE": "/two"}, ("a job of Cobalt of 2 hosts", 'launch --hostfile "$COBALT_NODEFILE" COMMAND')),
        ({"COBALT_NODEFILE": "/gone"}, ("whose hosts cannot be read",)),
        ({"COBALT_NODEFILE": "/one"}, ()),
        ({"SGE_ROOT": "/opt/sge"}, ()),  # a login host
    ):
        with subtests.test(f"{environ}"):
            found = detect(environ, read=files.get, run=nothing)
            assert found.hosts == ("c1",)
            assert len(found.notes) == bool(said)
            assert all(words in found.notes[0] for words in said)


def test_the_other_components_of_a_heterogeneous_job_are_told():
    for name in ("slurm-batch-het", "slurm-salloc-het"):
        record = load(name)
        [note] = detect(record["env"], *machine(record)).notes
        others = ",".join(expand(record["env"]["SLURM_JOB_NODELIST_HET_GROUP_1"]))
        assert "component 0 of 2" in note
        assert f"component 1 has {others}" in note


def test_every_component_of_a_heterogeneous_job_has_its_own_hosts_slots_cpus_and_devices(subtests):
    record = load("slurm-salloc-het")
    for source, environ in {"variables": record["env"], "scontrol": {"SLURM_JOB_ID": "9"}}.items():
        with subtests.test(source):
            found = detect(environ, *machine(record))
            first, second = found.parts
            assert (found.hosts, found.components) == (("n01", "n02"), (0, 0))
            assert (first.hosts, first.cpus, first.devices) == (("n01", "n02"), (4, 4), (4, 4))
            assert (second.hosts, second.slots, second.tasks, second.cpus) == (("n03",), (1,), 1, (1,))
            assert second.devices == (0,)  # scontrol names none, and does name those of the other


def test_a_step_has_no_more_hosts_than_devices_where_its_job_has_more():
    record = load("slurm-salloc-gres")
    step = {"SLURM_STEP_NODELIST": "n01", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
    environ = {**record["env"], **step, "SLURM_STEP_ID": "0"}
    found = detect(environ, *machine(record), more=True)
    assert (found.hosts, found.devices) == (("n01",), None)
    assert found.end_time


def test_a_step_of_a_heterogeneous_job_knows_its_components():
    record = load("slurm-step-het")
    found = detect(record["env"], *machine(record))
    assert (found.components, found.parts) == ((1, 1), ())
    over_all = {**record["env"], "SLURM_STEP_NODELIST": "n[01-03]", "SLURM_STEP_TASKS_PER_NODE": "1(x3)"}
    assert detect(over_all, *machine(record)).components == (0, 1, 1)


def test_an_interactive_shell_inside_a_job_has_all_hosts_of_the_job(subtests):
    for step in ("4294967290", "4294967291", "batch", "interactive", "extern"):
        with subtests.test(step=step):
            shell = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_STEP_ID": step}
            shell |= {"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_NUM_TASKS": "1"}
            assert detect(shell, nothing, nothing).hosts == ("n1", "n2")
            assert detect({**shell, "SLURM_STEP_ID": "0"}, nothing, nothing).hosts == ("n1",)


def test_a_shell_of_salloc_asks_for_the_devices_once_and_learns_the_end_too():
    record = load("slurm-salloc-gres")
    read, run = machine(record)

    found = detect(record["env"], read, run)

    assert run.asked == [f"scontrol -d show job {found.job_id}"]
    assert found.devices == (3,) * len(found.hosts)
    assert found.origin["devices"] == run.asked[0]
    local = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(found.end_time))
    assert f"EndTime={local} " in record["commands"][run.asked[0]]["stdout"]


def test_the_end_of_a_job_comes_from_its_variable_where_there_is_one():
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_END_TIME": "1795188151"}
    found = detect(env, nothing, nothing)
    assert (found.end_time, found.origin["end_time"]) == (1795188151, "SLURM_JOB_END_TIME")


def test_only_the_asked_job_of_an_array_is_read():
    record = load("slurm-array")
    env = {"SLURM_JOB_ID": "11"}
    answers = {"scontrol -d show job 11": record["commands"]["scontrol show job 7"]["stdout"]}
    found = detect(env, nothing, told(answers))
    assert (found.job_id, found.hosts) == ("11", ("node01",))


# ---- PBS -----------------------------------------------------------------------------------------------------------


def test_a_plain_node_file_is_used_as_it_is_and_a_repeating_one_is_not():
    plain = detect({"PBS_JOBID": "1", "PBS_NODEFILE": "/f"}, {"/f": "a\nb\n"}.get, nothing)
    repeating = detect({"PBS_JOBID": "1", "PBS_NODEFILE": "/f"}, {"/f": "a\na\n"}.get, nothing)

    assert (plain.hostfile, repeating.hostfile) == ("/f", "")


def test_a_node_file_may_list_full_names_and_end_its_lines_as_windows_does():
    text = "x4415c6s5b0n0.hostmgmt2415.cm.aurora.alcf.anl.gov\r\nx4415c6s6b0n0.hostmgmt2415.cm.aurora.alcf.anl.gov\r\n"
    found = detect({"PBS_JOBID": "1", "PBS_NODEFILE": "/f"}, {"/f": text}.get, nothing)
    assert found.hosts == tuple(text.split())


def test_the_daemons_own_copy_of_the_node_file_serves_where_its_variable_was_lost():
    found = detect({"PBS_JOBID": "4[2].head"}, {"/var/spool/pbs/aux/4[2].head": "n01\nn01\n"}.get, nothing)
    assert (found.hosts, found.slots, found.origin["hosts"]) == (("n01",), (2,), "/var/spool/pbs/aux/4[2].head")


def test_hosts_that_left_the_job_are_told():
    env = {"PBS_JOBID": "1", "PBS_NODEFILE": "/f", "EZPZ_JOBID": "1", "EZPZ_SCHEDULER": "pbs", "EZPZ_HOSTS": "a,b,c"}
    found = detect(env, {"/f": "a\nc\n"}.get, nothing)
    assert found.hosts == ("a", "c")
    assert "1 hosts have left the job" in found.notes[0]
    assert ": b;" in found.notes[0]


def qstat(exec_host, select, **more):
    fields = {"exec_host": exec_host, "Resource_List": {"select": select, "walltime": "01:00:30"}, **more}
    return {"qstat -f -F json 9": json.dumps({"Jobs": {"9": fields}})}


CHUNKS = [
    ("n01/1*4+n02/1*2+n03/1*2", "1:ncpus=4:mpiprocs=4+2:ncpus=2:mpiprocs=2", ("n01", "n02", "n03"), (4, 2, 2)),
    ("n01/0*2+n01/1*2+n02/0", "2:ncpus=2:mpiprocs=2+1:ncpus=1", ("n01", "n02"), (4, 1)),  # packed
    ("n03/0+n01/0", "2", ("n03", "n01"), (1, 1)),  # the order of the chunks is kept
    ("n01/0*0+n02/0*8", "1:ncpus=0+1:ncpus=8:mpiprocs=8", ("n02",), (8,)),  # a chunk without processes
    ("n01/0*8+n02/0*8", "ncpus=8:mpiprocs=8:ngpus=4", ("n01", "n02"), None),  # not one word per chunk
]


def test_slots_follow_the_chunks_that_were_asked_for(subtests):
    for exec_host, select, hosts, slots in CHUNKS:
        with subtests.test(exec_host=exec_host):
            answers = qstat(exec_host, select)
            found = detect({"PBS_JOBID": "9"}, nothing, told(answers))
            assert (found.hosts, found.slots) == (hosts, slots)
            assert bool(found.notes) == (slots is None)


def test_the_server_tells_devices_and_end_too():
    more = {
        "exec_vnode": "(v1:ncpus=4:ngpus=4)+(v2:ncpus=2:ngpus=2+v3:ncpus=2:ngpus=2)",
        "stime": "Fri Nov 20 15:22:30 2026",
    }
    answers = qstat("n01/0*4+n02/0*4", "2:ncpus=4:ngpus=4", **more)
    found = detect({"PBS_JOBID": "9"}, nothing, told(answers))
    start = time.mktime(time.strptime("2026-11-20 15:22:30", "%Y-%m-%d %H:%M:%S"))
    assert (found.devices, found.end_time) == ((4, 4), start + 3630)


SAYING_NOTHING = ["", "not JSON", '{"Jobs": {"9": "text"}}', '{"Jobs": []}', '{"Jobs": {"9": {}}}']


def test_an_answer_of_qstat_that_says_nothing_falls_back_on_the_classic_form(subtests):
    classic = (
        "Job Id: 9\n    exec_host = a-long-name-01/0*2+a-long-na\n\tme-02/0*2\n    Resource_List.select = 2:ncpus=2\n"
    )
    for answer in SAYING_NOTHING:
        with subtests.test(answer=answer):
            answers = {"qstat -f -F json 9": answer, "qstat -f 9": classic}
            found = detect({"PBS_JOBID": "9"}, nothing, told(answers))
            assert found.hosts == ("a-long-name-01", "a-long-name-02")


# ---- Flux (answers as the manual pages of flux-core describe them) ---------------------------------------------------

FLUX = {
    "flux getattr jobid": "f2XkGqvd9\n",
    "flux getattr hostlist": "tuolumne[1001-1004]\n",
    "flux resource list --states=all --no-header --format={nnodes} {ncores} {ngpus}": "4 384 16\n",
}


def test_an_instance_of_flux_is_a_job():
    found = detect({"FLUX_URI": "local:///tmp/flux"}, nothing, told(FLUX))
    assert (found.scheduler, found.job_id, len(found.hosts)) == ("flux", "f2XkGqvd9", 4)
    assert (found.hosts[0], found.devices, found.cpus) == ("tuolumne1001", (4,) * 4, (96,) * 4)
    assert found.origin["hosts"] == "flux getattr hostlist"


def test_a_task_of_flux_sees_the_hosts_of_its_own_job():
    answers = {**FLUX, "flux hostlist f9": "tuolumne[1003-1004]"}
    env = {"FLUX_URI": "local:///tmp/flux", "FLUX_JOB_ID": "f9"}
    assert detect(env, nothing, told(answers)).hosts == ("tuolumne1003", "tuolumne1004")


def test_the_systems_own_instance_is_no_job_and_one_made_by_hand_is(subtests):
    for owner, name in (("-1", "none"), (None, "none"), (str(os.getuid()), "flux")):
        with subtests.test(owner=owner):
            answers = {"flux getattr hostlist": "n[1-2]", "flux getattr security.owner": owner}
            found = detect({"FLUX_URI": "x"}, {HOSTNAME: "login1"}.get, told(answers))
            assert (found.scheduler, found.job_id) == (name, "")


def test_several_brokers_on_a_host_are_told():
    answers = {**FLUX, "flux getattr hostlist": "n1,n1,n2,n2"}
    found = detect({"FLUX_URI": "x"}, nothing, told(answers))
    assert (found.hosts, found.cpus, found.devices) == (("n1", "n2"), None, None)
    assert "4 brokers of Flux share 2 hosts" in found.notes


# ---- a shell without variables, and two schedulers at once -----------------------------------------------------------


def test_a_job_found_by_the_hosts_name_says_so():
    record = load("slurm-ssh")
    found = detect(record["env"], *machine(record))
    assert found.origin["hosts"] == f"scontrol -d show job {found.job_id}"
    assert any("found by the name of this host, n02" in note for note in found.notes)


def test_beside_a_job_of_pbs_on_other_hosts_a_note_says_where_to_run_this():
    record = load("pbs-ssh-elsewhere")
    found = detect(record["env"], *machine(record))
    assert (found.scheduler, found.hosts) == ("none", ("head",))
    way = "to use its hosts, run this on n01"
    assert found.notes[0] == f"job 1.head of yours runs on n01, n02, n03 and not here (1 more elsewhere too); {way}"
    jobless = {**record["env"], "EZPZ_SCHEDULER": "none", "EZPZ_HOSTS": "head"}  # as `ezpz_setup_job` has found before
    assert detect(jobless, *machine(record)).notes == ()


def test_several_jobs_on_this_host_are_an_error_that_says_how_to_choose():
    record = load("pbs-batch-mpiprocs")  # the user's jobs 1.head and 2.head share n01
    with pytest.raises(MachineError, match=r"1\.head, 2\.head all run on n01 .*export PBS_JOBID=1\.head"):
        detect({"USER": "user"}, *machine({**record, "files": {}}))
    lines = "1|1|n01\n2|2|n[01-02]\n"
    with pytest.raises(MachineError, match=r"1, 2 all run on n01 .*export SLURM_JOB_ID=1"):
        detect({"USER": "me"}, {HOSTNAME: "n01"}.get, lambda argv: lines if argv[0] == "squeue" else None)


def test_a_job_of_an_array_is_found_where_it_is_asked_for():
    row = "4[2].head user workq pbs-array.sh 123 2 2 -- 00:01 R 00:00 n01/3+n02/3\n"
    answers = {"qstat -u me -n1rw": "", "qstat -t -u me -n1rw": row}
    found = detect({"USER": "me"}, {HOSTNAME: "n02.cluster.edu"}.get, told(answers))
    assert (found.scheduler, found.job_id, found.hosts) == ("pbs", "4[2].head", ("n01", "n02"))


def test_a_shell_that_was_found_to_be_in_no_job_does_not_ask_again():
    asked = []
    env = {"USER": "me", "EZPZ_SCHEDULER": "none", "EZPZ_HOSTS": "login1", "EZPZ_JOBID": ""}
    assert detect(env, {HOSTNAME: "login1"}.get, asked.append).scheduler == "none"
    assert asked == []
    detect(env, {HOSTNAME: "n01"}.get, asked.append)  # the export came from another host
    assert asked


BOTH = {"PBS_JOBID": "1.head", "PBS_NODEFILE": "/f", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}


def processes(*names):
    """/proc of a chain of programs, this process first."""
    files = {}
    for index, name in enumerate(names):
        pid = "self" if index == 0 else str(100 + index)
        files[f"/proc/{pid}/stat"] = f"{pid} ({name}) S {101 + index} 1 1 0 -1" + " 0" * 44
    return files


INNER = [
    (processes("python3", "bash", "slurmstepd", "bash", "pbs_mom"), "slurm", "slurmstepd is the nearest"),
    (processes("python3", "a (odd) name", "pbs_mom", "bash", "salloc"), "pbs", "pbs_mom is the nearest"),
    ({HOSTNAME: "x9", "/f": "x9\n"}, "pbs", "only its job holds this host, x9"),
    ({HOSTNAME: "n2.edu"}, "slurm", "only its job holds this host"),
    ({HOSTNAME: "elsewhere"}, "slurm", "neither the process tree"),
]


def test_of_two_schedulers_the_inner_one_counts_and_says_so(subtests):
    for files, name, reason in INNER:
        with subtests.test(reason=reason):
            found = detect(BOTH, {"/f": "a\nb\n", **files}.get, nothing)
            assert found.scheduler == name
            assert reason in found.notes[-1]
            assert ("PBS_JOBID=1.head" in found.notes[-1]) == (name == "slurm")


def test_flux_inside_another_scheduler_counts():
    found = detect({**BOTH, "FLUX_URI": "x"}, nothing, told(FLUX))
    assert found.scheduler == "flux"
    assert "SLURM_JOB_ID=7, PBS_JOBID=1.head" in found.notes[-1]


# ---- bad input -----------------------------------------------------------------------------------------------------


BAD = [
    ({"PBS_JOBID": "1.head"}, {}, ("PBS_NODEFILE", "is unset", "qstat -f 1.head", "--hostfile")),
    ({"PBS_JOBID": "1.head", "PBS_NODEFILE": "/f"}, {}, ("PBS_NODEFILE=/f", "cannot be read")),
    ({"PBS_JOBID": "1.head", "PBS_NODEFILE": "/f"}, {"/f": "\n \n"}, ("PBS_NODEFILE=/f", "is empty")),
    ({"PBS_JOBID": "1.head", "PBS_NODEFILE": "/f"}, {"/f": "a\nb;reboot\n"}, ("'b;reboot'", "PBS_NODEFILE=/f")),
    ({"PBS_JOBID": "1.head", "PBS_NODEFILE": "/f"}, {"/f": "$(reboot)\n"}, ("'$(reboot)'", "PBS_NODEFILE=/f")),
    ({"PBS_JOBID": "1.head; reboot", "PBS_NODEFILE": "/f"}, {"/f": "a"}, ("not a job id", "PBS_JOBID")),
    ({"SLURM_JOB_ID": "`reboot`"}, {}, ("not a job id", "`reboot`", "unset SLURM_JOB_ID")),
    ({"SLURM_JOB_ID": "7"}, {}, ("job 7", "SLURM_JOB_NODELIST", "scontrol")),
    ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "-x"}, {}, ("not a host name", "'-x'", "SLURM_JOB_NODELIST")),
    ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-"}, {}, ("never closed", "n[1-", "^")),
    ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_NTASKS": "many"}, {},
     ("'many'", "SLURM_NTASKS", "unset SLURM_NTASKS")),
    ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "2(x2)"}, {},
     ("2 counts", "SLURM_TASKS_PER_NODE", "3 hosts")),
    ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "two"}, {}, ("two",)),
    ({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "n1 x"}, {}, ("LSF job 7", "LSB_MCPU_HOSTS", "--hostfile")),
    ({"FLUX_JOB_ID": "f9"}, {}, ("job f9", "flux hostlist f9")),
]  # fmt: skip


def test_bad_input_is_an_error_that_says_what_to_type(subtests):
    for environ, files, words in BAD:
        with subtests.test(environ=environ, files=files):
            with pytest.raises(EzpzError) as caught:
                detect(environ, files.get, nothing)
            assert all(word in str(caught.value) for word in words), caught.value
            assert caught.value.exit_code in {2, 125}


def test_an_earlier_shells_hosts_are_believed_for_its_own_job_only():
    env = {"PBS_JOBID": "1.head", "EZPZ_JOBID": "1.head", "EZPZ_SCHEDULER": "pbs", "EZPZ_HOSTS": "a,b"}
    found = detect(env, nothing, nothing)
    assert found.hosts == ("a", "b")
    assert "earlier shell" in found.origin["hosts"]
    with pytest.raises(MachineError):
        detect({**env, "PBS_JOBID": "2.head"}, nothing, nothing)


def test_a_scheduler_that_does_not_answer_is_asked_twice_and_survived():
    asked = []
    found = detect({"USER": "me"}, {HOSTNAME: "n01"}.get, asked.append)
    assert found.scheduler == "none"
    assert [argv[0] for argv in asked].count("squeue") == 2


def test_ten_thousand_hosts_are_counted_in_one_pass():
    text = "".join(f"nid{index:06d}\n" * 2 for index in range(10_000))
    begin = time.process_time()
    found = detect({"PBS_JOBID": "1", "PBS_NODEFILE": "/f"}, {"/f": text}.get, nothing)
    assert (len(found.hosts), set(found.slots), found.tasks) == (10_000, {2}, 20_000)
    assert time.process_time() - begin < 2  # of CPU; measured: 24 ms; counting anew for every host took seconds


def test_an_allocation_cannot_be_changed():
    with pytest.raises(AttributeError):
        Allocation("none", "", ("a",)).hosts = ("b",)


# ---- what a new scheduler needs (docs/cluster.md) ------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


def test_a_scheduler_is_complete(subtests):
    for name in SCHEDULERS:
        with subtests.test(name=name):
            one = scheduler(name)
            assert one.name == name
            assert one.title
            assert one.job_variables
            assert one.ancestor_prefixes
            assert one.detect({}, nothing, nothing) is None
            assert one.find("here", "me", nothing) is None
            assert any(path.stem.startswith(f"{name}-") for path in RECORDS), "no recorded environment"
            rows = (ROOT / "docs" / "cluster.md").read_text().lower().splitlines()
            assert any(row.startswith(f"| {name} |") for row in rows), "no row in docs/cluster.md"
            assert name in (ROOT / "CHANGELOG.md").read_text().lower()
