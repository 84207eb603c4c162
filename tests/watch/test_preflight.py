"""`launch --check`: what agents find on their hosts before ranks begin, with planted faults, and silence without."""

import json
import os
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ezpz.cluster.administrator import default
from ezpz.errors import UsageError
from ezpz.fields import to_fields
from ezpz.interpreter import script_of
from ezpz.launch.flavours.request import Setting
from ezpz.launch.options import parse
from ezpz.launch.planning import PlanBuilder
from ezpz.launch.survey import survey
from ezpz.watch.preflight.fast_check import look
from ezpz.watch.preflight.launcher import refusals
from ezpz.watch.preflight.messages import Look, Looked
from lab.hosts import ip_inside
from lab.ssh import SRC, Site

# In front of what ssh runs on one host: its own mounts, which nobody else sees.
CLIENT = """#!/bin/bash
line=() host=
for word; do
  line+=("$word")
  if [[ -z $host && $word == n0[1-3] ]]; then
    host=$word
    [[ $host == "$EZPZ_TEST_FAULTY" && -n $EZPZ_TEST_FAULT ]] && line+=("$EZPZ_TEST_FAULT;")
  fi
done
( "{}" "${{line[@]}}"; exit $? ) <&0 &
wait $!
"""
PROGRAM = "import os; print('rank', os.environ['RANK'])\n"


@pytest.fixture
def environ(clean_env, tmp_path):
    return {**clean_env, "XDG_STATE_HOME": str(tmp_path / "state"), "EZPZ_SITE_TOML": ""}


def record(folder):
    """The newest run.json under a folder of states."""
    return json.loads(max(folder.glob("ezpz/launches/*/run.json"), key=os.path.getmtime).read_text())


def words(done):
    """What was said besides the two lines of every start."""
    plan = r"ezpz: (\d+ ranks? on |\w+ launcher \()"
    said = [line for line in done.stderr.splitlines() if not re.match(plan, line)]
    return "\n".join(said)


def python_of_its_own(folder, torch):
    """A virtual environment that says it has this torch."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    packages = folder / "lib" / f"python{version}" / "site-packages"
    (packages / f"torch-{torch}.dist-info").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\nversion = 3.99.1\n")
    return folder


class Lab:
    """Three hosts and a head, on one of which something can be wrong."""

    def __init__(self, hosts, environ, folder):
        folder.mkdir()
        self.site = Site(hosts, environ, folder)
        self.site.env["EZPZ_SSH"] = self.site.client(hosts.rsh, CLIENT)
        self.hosts, self.folder = hosts, folder
        (folder / "train.py").write_text(PROGRAM)
        self.env = python_of_its_own(folder.parent / "env", "2.13.0")
        self.python = str(self.env / "bin" / "python3")
        self.state = folder.parent / "state"

    def launch(self, *words, fault="", on="n02", **more):
        words = words or (self.python, "train.py")
        planted = {"EZPZ_TEST_FAULTY": on, "EZPZ_TEST_FAULT": fault}
        flavour = [] if words[0] == "--flavour" else ["--flavour", "ssh"]
        return self.site.launch(*flavour, *words, hosts="n01:1\nn02:1\nn03:1\n", timeout=60, **planted, **more)


@pytest.fixture
def lab(make_hosts, environ, tmp_path):
    return Lab(make_hosts("head", "n01", "n02", "n03"), environ, tmp_path / "shared")


@pytest.mark.slow
def test_faults_of_one_host_of_three_are_named_before_a_rank_begins(lab, tmp_path):
    healthy = lab.launch()
    assert healthy.returncode == 0, healthy.stderr
    assert sorted(healthy.stdout.splitlines()) == ["rank 0", "rank 1", "rank 2"]
    assert words(healthy) == ""
    check = record(lab.state)["check"]
    assert (check["level"], check["origin"], check["answered"], check["notes"]) == ("fast", "default", 3, [])
    assert list(check["hosts"]) == ["n01", "n02", "n03"]
    assert {(facts["torch"], facts["version"]) for facts in check["hosts"].values()} == {("2.13.0", "3.99.1")}
    assert [facts["master"] for facts in check["hosts"].values()] == ["own", "other", "other"]
    assert check["hosts"]["n02"]["interface"] == "eth0"

    empty, other = tmp_path / "empty", python_of_its_own(tmp_path / "other", "2.12.0")
    empty.mkdir()

    # Another environment: the launch runs, with one word.
    done = lab.launch(fault=f"mount --bind {other} {lab.env}")
    assert done.returncode == 0
    assert words(done) == (
        "ezpz: note: torch 2.12.0 on n02, 2.13.0 on 2 hosts; give all hosts the same, or leave out n02: --exclude n02"
    )

    # The script is missing: refused.
    sub = lab.folder / "sub"
    sub.mkdir()
    (sub / "train.py").write_text(PROGRAM)
    done = lab.launch(lab.python, "sub/train.py", fault=f"mount --bind {empty} {sub}")
    assert (done.returncode, done.stdout) == (125, "")
    lacks = "n02: cannot read sub/train.py (from the command line): No such file or directory"
    advice = "put the script where all hosts can read it, or leave out n02: `--exclude n02`"
    expected = "expected a script that every host has"
    assert words(done) == f"ezpz: cannot start: {lacks}; {expected}; {advice}; no rank has begun"
    assert record(lab.state)["check"]["refused"].startswith("n02: cannot read sub/train.py ")

    # The working folder is.
    done = lab.launch(fault=f"mount --bind {empty} {tmp_path}")
    assert (done.returncode, done.stdout) == (125, "")
    [line] = words(done).splitlines()  # which says it once
    assert line.startswith(f"ezpz: cannot start ranks on n02: cannot enter {lab.folder} on n02 (from the launcher's w")

    # The first host's name means 127.0.1.1 on itself, which is right, and elsewhere, which is not.
    names = tmp_path / "names"
    names.write_text(lab.hosts.hosts_file.read_text().replace(f"{lab.hosts['n01'].address} ", "127.0.1.1 "))
    for on in ("n01", "n02"):
        done = lab.launch(fault=f"mount --bind {names} /etc/hosts", on=on)
        assert done.returncode == (0 if on == "n01" else 125)
        said = (
            "ezpz: cannot start: n02 cannot reach n01, where the ranks meet: that name means the host itself (127.x); "
        )
        assert (words(done) == "") is (on == "n01"), done.stderr
        assert on == "n01" or words(done).startswith(said)

    done = lab.launch(GLOO_SOCKET_IFNAME="ib7")
    assert done.returncode == 0
    none = "names no interface; there are lo, eth0; unset GLOO_SOCKET_IFNAME"
    assert words(done) == f"ezpz: note: all 3 hosts: GLOO_SOCKET_IFNAME=ib7 {none}"


@pytest.mark.slow
def test_an_address_where_ranks_cannot_meet_is_refused(lab):
    shared = lab.hosts["n01"]
    for address, said in (
        ("198.51.100.7", "no host of this launch has that address; expected one of n01, where rank 0 runs"),
        (lab.hosts["n02"].address, "it is an address of n02; expected one of n01, where rank 0 runs"),
        ("nosuch.invalid", "n01 does not know that name"),
    ):
        done = lab.launch("true", MASTER_ADDR=address)
        assert done.returncode == 2
        assert f"the ranks cannot meet at {address} (from MASTER_ADDR): {said}" in words(done)
        assert "Run `unset MASTER_ADDR`; `--check off` starts all the same" in words(done)
        assert words(done).count("\n") == 0

    done = lab.launch("--master-addr", "198.51.100.7", "true")
    assert done.returncode == 2
    assert "Leave --master-addr out; `--check off` starts all the same" in words(done)

    done = lab.launch("true", EZPZ_NGPU_PER_HOST="1")  # each has a device of its own
    assert (done.returncode, words(done)) == (0, "")

    ip_inside(shared.namespace, "addr add 198.51.100.9/32 dev lo")  # which the others have no route to
    done = lab.launch("true", MASTER_ADDR="198.51.100.9")
    assert done.returncode == 2
    assert "no host reaches 198.51.100.9 (from MASTER_ADDR), where the ranks meet: on n02, n03, Network is un" in words(
        done
    )
    for name in ("n02", "n03"):  # a route where nobody answers
        nobody = "neigh add 198.51.100.9 dev eth0 lladdr 02:00:00:00:00:77"
        ip_inside(lab.hosts[name].namespace, "route add 198.51.100.0/24 dev eth0", nobody)
    done = lab.launch("true", MASTER_ADDR="198.51.100.9")
    assert done.returncode == 2
    assert "on n02, n03, no answer within 1.5 s" in words(done)

    # What `launch` overrides is no finding, and nothing is looked at where nobody wants it.
    assert words(lab.launch("true", MASTER_ADDR="198.51.100.7", RANK="3")) == ""
    assert "check" in record(lab.state)
    done = lab.launch("--check", "off", "true", MASTER_ADDR="198.51.100.7")
    assert (done.returncode, words(done)) == (0, "")
    assert (record(lab.state)["check"]["level"], record(lab.state)["check"]["hosts"]) == ("off", {})


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--mpi", "no")])
def test_mpich_starts_agents_that_look_in_the_same_way(lab, more, mpich, tmp_path):
    (lab.folder / "sub").mkdir()
    (lab.folder / "sub" / "train.py").write_text(PROGRAM)
    (lab.folder / "empty").mkdir()
    fault = f"mount --bind {lab.folder}/empty {lab.folder}/sub"
    client = tmp_path / "client"  # Hydra takes no name with blanks
    client.symlink_to(shlex.split(lab.site.env["EZPZ_SSH"])[0])
    lab.site.env |= {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": str(client), "PATH": mpich["PATH"]}
    done = lab.launch("--flavour", "mpich", *more, lab.python, "sub/train.py")
    assert (done.returncode, words(done), len(done.stdout.splitlines())) == (0, "", 3)
    assert record(lab.state)["check"]["answered"] == 3
    done = lab.launch("--flavour", "mpich", *more, lab.python, "sub/train.py", fault=fault, on="n03")
    blames = {"n03": "it cannot read sub/train.py (No such file or directory)"}
    assert (done.returncode, record(lab.state)["blames"]) == (125, blames)
    assert "cannot start: n03: cannot read sub/train.py (from the command line): No such file" in words(done)
    done = lab.launch("--flavour", "mpich", *more, "true", MASTER_ADDR="198.51.100.7")
    assert done.returncode == 2
    assert "no host of this launch has that address; expected one of n01" in words(done)


# All ranks here.


@pytest.mark.slow
def test_one_host_is_looked_at_by_the_launcher_itself(launch, environ, tmp_path, mpich):
    (tmp_path / "train.py").write_text("")
    for more, command, text in (
        ({"MASTER_ADDR": "198.51.100.7"}, ["true"], "no host of this launch has that address; expected one of "),
        ({"MASTER_ADDR": "nosuch.invalid"}, ["true"], "does not know that name"),
        ({}, [sys.executable, "-u", "tran.py"], "there is no script tran.py in "),
        (
            {"EZPZ_NGPU_PER_HOST": "2", "CUDA_VISIBLE_DEVICES": "0,0"},
            ["true"],
            "CUDA_VISIBLE_DEVICES=0,0 names no device of its own for each rank; expected one; unset CUDA_VISIBLE_DEV",
        ),
    ):
        done = launch("-n", "2", *command, env={**environ, **more})
        assert (done.returncode, done.stdout) == (2, "")
        assert text in done.stderr.splitlines()[-1]
        kept = record(tmp_path / "state")
        assert kept["cause"]["text"] == kept["check"]["refused"]
    for flavour in ("local", "mpich"):
        env = {**environ, "PATH": mpich["PATH"], "GLOO_SOCKET_IFNAME": "ib7"}
        done = launch("-n", "2", "--flavour", flavour, "true", env=env)
        assert done.returncode == 0
        assert words(done).count("note: GLOO_SOCKET_IFNAME=ib7 names no interface; there are ") == 1
        assert len(record(tmp_path / "state")["check"]["notes"]) == 1


@pytest.mark.slow
def test_full_adds_what_doctor_knows(launch, environ):
    environ = {**environ, "TORCH_DEVICE": "cpu", "RANK": "3", "http_proxy": "http://127.0.0.1:9"}
    done = launch("-n", "1", "--check", "full", "true", env=environ)
    assert done.returncode == 0
    assert "note: the proxy of http_proxy cannot be reached: " in words(done)
    assert "RANK=3" not in words(done)
    check = record(Path(environ["XDG_STATE_HOME"]))["check"]
    assert "proxy" in {each["check"] for each in check["doctor"]["findings"]}
    assert len(check["doctor"]["facts"]) == 1

    done = launch("-n", "1", "--check", "full", "--attempts", "2", "false", env=environ)
    assert "2 attempts: " in words(done)
    again = record(Path(environ["XDG_STATE_HOME"]))
    assert again["check"]["doctor"]["facts"][0]["time"] >= again["attempts"][1]["started"]  # it is asked anew


@pytest.mark.slow
def test_healthy_launches_say_nothing_more(launch, environ, mpich):
    by = {"local": environ, "mpich": {**environ, "PATH": mpich["PATH"]}}
    for turn in range(100 if os.environ.get("EZPZ_MATRIX") else 6):
        name = ("local", "mpich")[turn % 2]
        done = launch("-n", "2", "--flavour", name, "true", env=by[name])
        assert (done.returncode, words(done)) == (0, "")


# The administrator's file.


def test_a_wrong_file_of_the_administrator_is_one_line(launch, environ, tmp_path, subtests):
    file = tmp_path / "site.toml"
    for text, problem in [
        ('[launch]\ncheck = "of"\n', "bad value launch.check = 'of' (from {file}); expected fast, full, off"),
        ("[launch]\nchek = 1\n", "unknown key launch.chek = 1 (from {file}); expected launch.check, "),
        ("sampling = 3\n", "unknown key sampling = 3 (from {file})"),
        (
            "[launch]\nsampling = 0.01\n",
            "bad value launch.sampling = 0.01 (from {file}); expected off, seconds from 0.1 to 3600. Correct",
        ),
        ("[launch]\nsampling = true\n", "bad value launch.sampling = True (from {file})"),
        ("[launch]\ncheck = 3\n", "bad value launch.check = 3 (from {file}); expected fast, full, off"),
        ("[launch\n", "cannot read {file}: "),
    ]:
        with subtests.test(text):
            file.write_text(text)
            with pytest.raises(UsageError) as caught:
                default("launch.check", {"EZPZ_SITE_TOML": str(file)}, "fast")
            assert problem.format(file=file) in str(caught.value)
            assert "\n" not in str(caught.value)
    done = launch("--dry-run", "true", env={**environ, "EZPZ_SITE_TOML": str(file)})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"cannot read {file}: " in done.stderr


def test_the_administrators_default_gives_way_to_the_option(environ, tmp_path):
    file = tmp_path / "site.toml"
    file.write_text('[launch]\ncheck = "off"\n')
    environ = {**environ, "EZPZ_SITE_TOML": str(file)}
    for words_, expected in (((), ("off", str(file))), (("--check", "fast"), ("fast", "--check"))):
        options = parse([*words_, "-n", "1", "true"], environ)
        builder = PlanBuilder(survey(options, environ), options, environ)
        assert tuple(builder.check) == expected
    assert tuple(default("launch.check", {"EZPZ_SITE_TOML": ""}, "fast")) == ("fast", "default")
    with pytest.raises(UsageError, match="No such file"):
        default("launch.check", {"EZPZ_SITE_TOML": str(tmp_path / "none")}, "fast")


# Without processes.


def test_the_script_of_a_command_is_known(subtests):
    scripts = {"python3 train.py --lr 1": "train.py", "python -u -W ignore -Xdev a/b.py": "a/b.py"}
    scripts |= {"/usr/bin/python3.12 -X dev -O x": "x"}
    none = "python3 -m train", "python3 -c 1", "python3 -", "python3", "./train.py", "pythonic train.py", ""
    for command, script in {**scripts, **dict.fromkeys(none, "")}.items():
        with subtests.test(command):
            assert script_of(command.split()) == script


def looked_at(environ, count, *, own=True, by_shim=False):
    request = Look(own_devices=own, folder="", program="true", script="")
    return look(request, environ, "", count, first=True, by_shim=by_shim)


def test_the_device_of_each_rank_is_known(subtests):
    for environ, count, by_shim, devices, shared in [
        ({}, 2, False, "0 1", ""),
        ({"CUDA_VISIBLE_DEVICES": "2, 5,7"}, 2, False, "2 5", ""),
        ({"CUDA_VISIBLE_DEVICES": "2,2,7"}, 2, False, "2 2", "CUDA_VISIBLE_DEVICES=2,2,7"),
        # One device for two ranks; behind a shim it may be the first rank's own.
        ({"CUDA_VISIBLE_DEVICES": "3"}, 2, False, "3", "CUDA_VISIBLE_DEVICES=3"),
        ({"CUDA_VISIBLE_DEVICES": "3"}, 2, True, "", ""),
        ({"CUDA_VISIBLE_DEVICES": "3"}, 1, True, "3", ""),
        # Slurm sets masks of all vendors; those of the wrong one count for nothing.
        ({"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0,1"}, 2, False, "0 1", ""),
        # Two tiles of one card, and each a device of its own.
        ({"ZE_AFFINITY_MASK": "0.0,0.1", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, 2, False, "0", "0.0,0.1"),
        ({"ZE_AFFINITY_MASK": "0.0,0.1"}, 2, False, "0.0 0.1", ""),
    ]:
        with subtests.test(environ):
            for own in (True, False):
                found = looked_at(environ, count, own=own, by_shim=by_shim)
                assert found.devices == (devices.split() if own else [])
                assert bool(found.shared) is bool(shared and own)
                assert found.shared.endswith(shared if own else "")
                assert bool(found.machine) is own


def test_two_names_of_a_machine_do_not_share_its_devices_unasked():
    found = looked_at({}, 2)
    plan = SimpleNamespace(
        placement=SimpleNamespace(hosts=("n01", "alias", "n02"), counts=(2, 2, 2)),
        address=Setting("n01", "default"),
        context=SimpleNamespace(hosts_origin="--hosts"),
        command=("true",),
    )
    for second, refused in (({}, True), ({"machine": "another"}, False), ({"devices": ["2", "3"]}, False)):
        facts = zip(plan.placement.hosts, ({}, second, {"machine": "third"}), strict=True)
        said = [
            each.text for each in refusals({host: Looked(**{**to_fields(found), **own}) for host, own in facts}, plan)
        ]
        one = "n01 and alias (from --hosts) are one machine, and a rank of each would have its device 0; expected one "
        assert [text.startswith(one) for text in said] == [True] * refused


def test_a_folder_that_one_host_lacks_is_named_before_the_script_in_it():
    plan = SimpleNamespace(
        placement=SimpleNamespace(hosts=("n01",), counts=(2,)),
        address=Setting("n01", "default"),
        context=SimpleNamespace(hosts_origin="--hosts"),
        command=("python3", "train.py"),
    )
    lacks = os.strerror(2)
    found = Looked(**{**to_fields(looked_at({}, 2)), "folder_problem": lacks, "script_problem": lacks})
    assert f"is missing: {lacks}" in next(refusals({"n01": found}, plan)).text


def test_what_all_hosts_lack_is_the_users_mistake_whatever_the_reasons():
    names = ("n01", "n02", "n03")
    plan = SimpleNamespace(
        placement=SimpleNamespace(hosts=names, counts=(2, 2, 2)),
        address=Setting("n01", "default"),
        context=SimpleNamespace(hosts_origin="--hosts"),
        command=("python3", "train.py"),
    )
    whole = to_fields(looked_at({}, 2))
    reasons = (os.strerror(2), os.strerror(13), "")
    found = {name: Looked(**{**whole, "folder_problem": why}) for name, why in zip(names, reasons, strict=True)}
    some = next(refusals(found, plan))
    assert ("--exclude n01,n02" in some.text, [*some.blames], some.is_users) == (True, ["n01", "n02"], False)
    del found["n03"]
    assert next(refusals(found, plan)).is_users


def test_nothing_more_is_imported_by_a_look(run_cli):
    code = "import sys, ezpz.watch.preflight.host, ezpz.watch.preflight.launcher; print(*sys.modules)"
    done = run_cli([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {SRC!r}); {code}"])
    assert done.returncode == 0, done.stderr
    heavy = {"typing", "subprocess", "threading", "json", "tomllib", "importlib.metadata", "torch"}
    assert not heavy & set(done.stdout.split())
