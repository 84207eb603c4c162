"""`launch` inside real Slurm jobs over two hosts."""

import shlex
import sys

import pytest

from lab import flavours
from lab.shown import AGREE, SHOW, agreed, shown

LAUNCH = [sys.executable, "-m", "ezpz.launch"]
EXPORTS = [sys.executable, "-m", "ezpz.cluster", "--sh"]
NAMES = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "WORLD_SIZE")


def test_a_job_of_two_hosts_gets_its_tasks_and_the_users_variables(slurm, clean_env):
    env = {**clean_env, "MINE": "a 'b', \"c\"=d", "RANK": "7", "SLURM_EXPORT_ENV": "NONE"}
    done = slurm.salloc(["-N2", "-n2"], [*LAUNCH, *SHOW, "a b", ""], env)

    assert done.returncode == 0, done.stderr
    ranks = shown(done.stdout)
    assert [host for _, _, host, _ in ranks] == ["n01", "n02"]
    assert ["".join(environ[name] for name in NAMES) for environ, *_ in ranks] == ["00102", "10112"]
    assert [(environ["MINE"], argv) for environ, argv, _, _ in ranks] == [("a 'b', \"c\"=d", ["a b", ""])] * 2
    assert {environ["MASTER_ADDR"] for environ, _, _, _ in ranks} == {"n01"}
    assert {environ["OMP_NUM_THREADS"] for environ, _, _, _ in ranks} == {"1"}  # one CPU was granted per task
    assert "2 ranks on 2 hosts from n01 on (SLURM_NTASKS), cpu\n" in done.stderr
    assert "srun launcher (srun of Slurm job" in done.stderr
    assert "rendezvous at n01:" in done.stderr


def test_rank_0_gets_all_of_the_input_and_its_end(slurm, clean_env):
    line = shlex.join([*LAUNCH, "-n", "2", "bash", "-c", "echo $RANK $(wc -c)"])
    done = slurm.salloc(["-N2", "-n2"], ["bash", "-c", f"head -c 3000000 /dev/zero | {line}"], clean_env)
    assert sorted(done.stdout.splitlines()) == ["0 3000000", "1 0"], done.stderr


def test_a_launch_in_each_task_of_srun_is_refused_and_one_in_the_shell_of_a_step_is_not(slurm, clean_env):
    inside = shlex.join([*LAUNCH, "-n", "2", "bash", "-c", "echo rank $RANK"])
    done = slurm.salloc(["-N2", "-n2"], ["srun", "--kill-on-bad-exit=0", *shlex.split(inside)], clean_env)
    assert (done.returncode, "rank" in done.stdout) == (2, False), done.stderr
    assert done.stderr.count("`srun … launch` would start a world in each of 2 tasks") == 1
    typed = f"echo {shlex.quote(f'{inside}; echo code $?; exit')}"  # into the shell
    shell = f"{typed} | script -qec 'srun --overlap -N2 -n2 --pty bash --norc' /dev/null"
    done = slurm.salloc(["-N2", "-n2"], ["bash", "-c", shell], clean_env)
    assert "rank 0" in done.stdout, done
    assert "rank 1" in done.stdout
    assert "code 0" in done.stdout


HOSTS_NAMED = {"as granted": ("n01", "n02"), "in another order": ("n02", "n01")}


@pytest.mark.parametrize("hosts", HOSTS_NAMED.values(), ids=HOSTS_NAMED)
def test_srun_places_uneven_blocks_in_the_order_of_the_hosts_that_the_user_names(slurm, clean_env, hosts):
    line = [*LAUNCH, "--hosts", ",".join(hosts), "-n", "3", "--ppn", "2", *SHOW]
    done = slurm.salloc(["-N2", "--ntasks-per-node=2"], line, clean_env)
    ranks = [(environ["RANK"], environ["LOCAL_RANK"], host) for environ, _, host, _ in shown(done.stdout)]
    assert ranks == [("0", "0", hosts[0]), ("1", "1", hosts[0]), ("2", "0", hosts[1])], done.stderr
    assert done.returncode == 0
    assert "srun:" not in done.stderr  # it would warn of the job's tasks per node
    even = slurm.salloc(["-N2", "-n2"], [*LAUNCH, "--hosts", ",".join(hosts), *SHOW], clean_env)
    assert [host for _, _, host, _ in shown(even.stdout)] == list(hosts), even.stderr


@pytest.mark.parametrize(
    ("flavour", "hosts"),
    [("mpich", ("n01", "n02")), *((name, ("n02", "n01")) for name in flavours.NAMES)],
    indirect=["flavour"],
)
def test_an_mpi_reaches_the_jobs_hosts_through_slurm_and_keeps_their_order(slurm, flavour, hosts):
    """No ssh leads from one lab host to another."""
    name = {"openmpi": "openmpi5"}.get(flavour.name, flavour.name)
    line = [*LAUNCH, "--flavour", name, "--hosts", ",".join(hosts), "-n", "3", "--ppn", "2"]
    done = slurm.salloc(["-N2", "--ntasks-per-node=2"], [*line, *SHOW], flavour.env())
    assert done.returncode == 0, done.stderr
    told = slurm.salloc(["-N2", "--ntasks-per-node=2"], [*line, *AGREE], flavour.env())
    assert agreed(told.stdout) == TOLD, told.stderr
    assert [host for _, _, host, _ in shown(done.stdout)] == [hosts[0], hosts[0], hosts[1]]


TOLD = ["0 3 0 2 0 True", "1 3 1 2 0 True", "2 3 0 1 1 True"]


def test_ranks_are_told_the_same_by_every_name(slurm, clean_env, subtests):
    for shell in (slurm.salloc, slurm.sbatch):
        for words in ([], ["--mpi", "no"]):
            with subtests.test(f"{shell.__name__} {words}"):
                line = [*LAUNCH, "-n", "3", "--ppn", "2", *words, *AGREE]
                asked = ["-N2", "--ntasks-per-node=2"]
                if shell == slurm.sbatch:
                    done = shell(asked, f"#!/bin/sh\n{shlex.join(line)}", clean_env, timeout=90)
                else:
                    done = shell(asked, line, clean_env)
                assert agreed(done.stdout) == TOLD, done


def test_devices_decide_the_number_of_ranks(slurm, clean_env):
    done = slurm.salloc(["-N2", "--gres=gpu:2"], EXPORTS, clean_env)
    # Outside a step salloc tells no SLURM_GPUS_ON_NODE on a host without devices: the user's word counts.
    told = slurm.salloc(["-N2", "--gres=gpu:2"], EXPORTS, {**clean_env, "EZPZ_NGPU_PER_HOST": "2"})
    assert (done.returncode, told.returncode) == (0, 0)
    assert {"export NHOSTS=2", "export NGPUS=4", "export EZPZ_NRANKS=4"} <= set(told.stdout.splitlines())


MASKED = 'echo "$RANK $LOCAL_WORLD_SIZE $(uname -n) $CUDA_VISIBLE_DEVICES"'
FOUR_DEVICES = ["-N2", "--gres=gpu:4", "--ntasks-per-node=1"]


def masks(output):
    return sorted(line.split() for line in output.splitlines() if not line.startswith("ezpz"))


def test_ranks_see_the_devices_of_the_users_mask_or_of_the_option(slurm, clean_env):
    """srun sets the mask of each rank anew, to all devices of the job."""
    launch = f"{shlex.join(LAUNCH)} sh -c '{MASKED}'"
    first, second = f"CUDA_VISIBLE_DEVICES=2,3 {launch}", launch.replace("ezpz.launch", "ezpz.launch --devices 0,3")
    done = slurm.sbatch(FOUR_DEVICES, f"#!/bin/sh\n{first}\n{launch}\n{second}", clean_env, timeout=90)
    lines = masks(done.stdout)
    expected = [[str(rank), "2", f"n0{1 + rank // 2}", mask] for rank in range(4) for mask in ("0,3", "2,3")]
    expected += [[str(rank), "4", f"n0{1 + rank // 4}", "0,1,2,3"] for rank in range(8)]
    assert lines == sorted(expected), done.stdout


@pytest.mark.parametrize("shell", ["salloc", "sbatch"])
def test_each_host_of_an_uneven_grant_gets_a_rank_per_device(slurm, clean_env, shell):
    asked = ["-N2", "--gpus=5", "-n5"]
    line = [*LAUNCH, "sh", "-c", MASKED]
    if shell == "sbatch":
        done = slurm.sbatch(asked, f"#!/bin/sh\n{shlex.join(line)}", clean_env, timeout=90)
    else:
        done = slurm.salloc(asked, line, clean_env)
    ranks = [line.split(" ", 3) for line in done.stdout.splitlines() if line[0].isdigit()]
    assert sorted(rank for rank, *_ in ranks) == list("01234"), done
    assert sorted((int(count), len(mask.split(","))) for _, count, _, mask in ranks) == [(1, 1)] + [(4, 4)] * 4
    assert "4 or 1 cuda devices per host" in done.stdout + done.stderr


def test_the_first_failure_ends_the_step_and_is_the_exit_code(slurm, clean_env):
    script = 'if [ "$RANK" = 1 ]; then sleep 0.5; exit 5; fi; sleep 600'
    done = slurm.salloc(["-N2", "-n2"], [*LAUNCH, "bash", "-c", script], clean_env)
    assert done.returncode == 5, done.stderr
    assert "rank 1 on host n02" in done.stderr


def test_a_second_launch_in_the_same_job_works_after_the_first(slurm, clean_env):
    line = f"{LAUNCH[0]} -m ezpz.launch true && {LAUNCH[0]} -m ezpz.launch hostname"
    done = slurm.salloc(["-N2", "-n2"], ["bash", "-c", line], clean_env)
    assert sorted(done.stdout.split()) == ["n01", "n02"], done.stderr


def test_nothing_stays_on_the_hosts_when_launch_is_terminated(slurm, clean_env, tmp_path):
    rank = f"touch {tmp_path}/up.$RANK; exec sleep 600"
    up = f"until [ -e {tmp_path}/up.0 ] && [ -e {tmp_path}/up.1 ]; do sleep 0.1; done"
    script = f"#!/bin/bash\n{LAUNCH[0]} -m ezpz.launch bash -c '{rank}' & {up}; kill $!; wait $!; echo code $?\n"
    done = slurm.sbatch(["-N2", "--ntasks-per-node=1"], script, clean_env, timeout=90)
    assert "code 143" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_any_components_of_a_heterogeneous_job_can_be_launched_on(slurm, clean_env):
    # One job: Slurm starts such jobs by its backfill scheduler alone, which wakes every half minute.
    show = ["sh", "-c", 'echo "= $RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $WORLD_SIZE $(uname -n) $CUDA_VISIBLE_DEVICES"']
    first, second, both, uneven, back, inside = (
        shlex.join([*LAUNCH, *options, *show])
        for options in (
            *([], ["--hosts", "n02"], ["--hosts", "n01,n02"]),
            *(["--hosts", "n01,n02", "-n", "4", "--ppn", "3", "--oversubscribe"], ["--hosts", "n02,n01"], []),
        )
    )
    script = (
        f"#!/bin/bash\nexport TORCH_DEVICE=cpu\n{first}\necho ====; {second}\necho ====; {both}\necho ====; {uneven}\n"
        f"echo ====; {back}; echo code $?\necho ====; srun --het-group=1 -n1 {inside}\n"
        f"echo ====; unset TORCH_DEVICE; {second}\necho ====; {both}\n"
    )
    asked = ["-N1", "-n2", "--gres=gpu:1", ":", "-N1", "-n2", "--gres=gpu:3"]
    done = slurm.sbatch(asked, script, clean_env, timeout=140)
    parts = done.stdout.split("====")
    ranks = [sorted(line[2:].split()[:5] for line in part.splitlines() if line.startswith("= ")) for part in parts]
    assert ranks[0] == [["0", "0", "2", "2", "n01"], ["1", "1", "2", "2", "n01"]], parts[0]
    assert "component 1 has n02" in parts[0]
    assert ranks[1] == [["0", "0", "2", "2", "n02"], ["1", "1", "2", "2", "n02"]], parts[1]
    assert "component 0" not in parts[1]
    assert ranks[2] == [[str(rank), str(rank % 2), "2", "4", f"n0{1 + rank // 2}"] for rank in range(4)], parts[2]
    assert ranks[3] == [*([str(rank), str(rank), "3", "4", "n01"] for rank in range(3)), ["3", "0", "1", "4", "n02"]]
    assert "numbers ranks by component" in parts[4], parts[4]
    assert "`--hosts n01,n02`" in parts[4]
    assert "code 2" in parts[4]
    assert ranks[5] == [["0", "0", "1", "1", "n02"]], parts[5]
    assert ranks[6] == [[str(rank), str(rank), "3", "3", "n02"] for rank in range(3)], parts[6]
    assert [rank[3:] for rank in ranks[7]] == [["4", "n01"], *[["4", "n02"]] * 3], parts[7]
