"""What the kernel counts of a control group's memory, in both versions, in containers and where nothing is."""

from ezpz import cgroup


def lay(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


VERSION_2 = {
    "proc/7/cgroup": "0::/job_1/step_0\n",
    "sys/fs/cgroup/job_1/memory.max": "8589934592\n",
    "sys/fs/cgroup/job_1/step_0/memory.max": "max\n",
    "sys/fs/cgroup/job_1/step_0/memory.peak": "4096\n",
    "sys/fs/cgroup/job_1/step_0/memory.events": "low 0\nhigh 0\nmax 12\noom 1\noom_kill 2\noom_group_kill 0\n",
}
VERSION_1 = {
    "proc/7/cgroup": "9:name=systemd:/\n5:cpu,cpuacct:/x\n4:memory:/slurm/job_1\n0::/\n",
    "sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes": "1024\n",
    "sys/fs/cgroup/memory/slurm/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/slurm/job_1/memory.max_usage_in_bytes": "1000\n",
    "sys/fs/cgroup/memory/slurm/job_1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
}
IN_A_CONTAINER = {
    "proc/7/cgroup": "4:memory:/docker/abc\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "2048\n",
    "sys/fs/cgroup/memory/memory.oom_control": "oom_kill 1\n",
}


CASES = {
    "version 2": (VERSION_2, [8 << 30], 4096, 2),
    "version 1": (VERSION_1, [1024], 1000, 3),
    "a container": (IN_A_CONTAINER, [2048], None, 1),
    "no group": ({"proc/7/cgroup": "0::/\n", "sys/fs/cgroup/cgroup.procs": ""}, [], None, None),
    "no such folder": ({"proc/7/cgroup": "4:memory:/gone\n"}, [], None, None),
    "no Linux": ({}, [], None, None),
}


def test_limits_peak_and_kills_of_a_process(subtests, tmp_path):
    for name, (files, *told) in CASES.items():
        folder = cgroup.memory_folder(7, lay(tmp_path / name, files))
        with subtests.test(name):
            assert [cgroup.memory_limits(folder), cgroup.memory_peak(folder), cgroup.memory_kills(folder)] == told


QUOTAS = {
    "version 2": ({"proc/7/cgroup": "0::/pod/one\n", "pod/one/cpu.max": "150000 100000\n"}, 1.5),
    "a group above": (
        {"proc/7/cgroup": "0::/pod/one\n", "pod/one/cpu.max": "max 100000\n", "pod/cpu.max": "200000 100000\n"},
        2.0,
    ),
    "version 1": (
        {
            "proc/7/cgroup": "4:cpu,cpuacct:/docker/a\n0::/\n",
            "cpu/docker/a/cpu.cfs_quota_us": "50000\n",
            "cpu/docker/a/cpu.cfs_period_us": "100000\n",
        },
        0.5,
    ),
    "version 1, the other name, seen from inside": (
        {
            "proc/7/cgroup": "4:cpu,cpuacct:/docker/a\n",
            "cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        3.0,
    ),
    "no limit": (
        {"proc/7/cgroup": "4:cpu:/a\n", "cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
        None,
    ),
    "torn": ({"proc/7/cgroup": "0::/pod\n", "pod/cpu.max": "15"}, None),
    "no period": ({"proc/7/cgroup": "0::/pod\n", "pod/cpu.max": "100000 0\n"}, None),
    "no group": ({}, None),
}


def test_the_cpus_whose_time_a_process_may_use(subtests, tmp_path):
    for name, (files, told) in QUOTAS.items():
        laid = {file if file.startswith("proc") else f"sys/fs/cgroup/{file}": text for file, text in files.items()}
        with subtests.test(name):
            assert cgroup.cpu_quota(7, lay(tmp_path / name, laid)) == told


def test_an_old_kernel_does_not_count(tmp_path):
    root = lay(
        tmp_path, {"proc/vmstat": "nr_free_pages 7\n", "sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\n"}
    )
    assert cgroup.host_memory_kills(root) is None
    assert cgroup.memory_kills(f"{root}/sys/fs/cgroup/memory") is None


def test_the_count_of_the_host(tmp_path):
    root = lay(tmp_path, {"proc/vmstat": "nr_free_pages 7\noom_kill 41\noom_killer 9\n"})
    assert cgroup.host_memory_kills(root) == 41
