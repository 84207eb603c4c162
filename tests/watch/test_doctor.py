"""`ezpz doctor`: this host, hosts of a lab with planted faults, and the bundle for a support ticket."""

import json
import os
import shutil
import sys
import zipfile

import pytest

from lab import process, selection
from lab.ssh import Site

DOCTOR = [sys.executable, "-m", "ezpz", "doctor"]
STALE = {"RANK": "3", "MASTER_ADDR": "n09"}


@pytest.fixture
def environ(clean_env, tmp_path):
    """Those of a shell on a host that is in order, whatever the machine of these tests is like."""
    return {**clean_env, "TORCH_DEVICE": "cpu", "XDG_STATE_HOME": str(tmp_path / "state"), "TMPDIR": str(tmp_path)}


OF_THE_MACHINE = {"space", "inodes", "write", "copies", "nofile", "nproc", "memlock", "hangs", "clock"}
if not selection.HAS_TORCH:  # the finding is right, and another test's: tests/watch/test_doctor_faults.py
    OF_THE_MACHINE.add("torch")


def findings(done):
    """Return checks and texts, but those of the machine that runs the tests: its disk, limits, load, name server."""
    answer = json.loads(done.stdout)
    return {each["check"]: each["text"] for each in answer["findings"] if each["check"] not in OF_THE_MACHINE}


@pytest.mark.slow
def test_this_host_is_in_order_until_something_is_planted(run_cli, environ, tmp_path):
    ours = {"WORLD_SIZE": "2", "EZPZ_WORLD_SIZE": "2"}  # of ezpz_setup_job
    done = run_cli([*DOCTOR, "--json"], {**environ, **ours})
    assert findings(done) == {}, done.stdout + done.stderr
    closed = {"http_proxy": "http://127.0.0.1:9", "GLOO_SOCKET_IFNAME": "ib77"}
    done = run_cli([*DOCTOR, "--json", "nowhere.py"], {**environ, **STALE, **closed})
    told = findings(done)
    assert done.returncode == 125
    assert set(told) == {"script", "ifname", "stale", "proxy"}
    assert told["stale"] == "this shell is no rank, and holds RANK=3 MASTER_ADDR=n09"
    text = run_cli([*DOCTOR, "nowhere.py"], environ)
    assert text.returncode == 125
    assert f"problem  cannot read {tmp_path}/nowhere.py" in text.stdout.replace("\n         ", " ")
    assert all(len(line) <= 80 or str(tmp_path) in line for line in text.stdout.splitlines())


@pytest.mark.slow
def test_a_torch_that_cannot_be_imported_is_a_problem_and_the_time_of_an_import_is_said(run_cli, environ, tmp_path):
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text("raise ImportError('libtorch_cpu.so: file too short')")
    broken = os.pathsep.join(filter(None, [str(tmp_path / "broken"), environ.get("PYTHONPATH")]))
    done = run_cli([*DOCTOR, "--json"], {**environ, "PYTHONPATH": broken, "OMP_NUM_THREADS": "two"})
    assert done.returncode == 125
    found = findings(done)
    assert set(found) == {"import", "threads"}
    origin = tmp_path / "broken" / "torch" / "__init__.py"
    assert found["import"] == f"importing torch ({origin}) fails: ImportError: libtorch_cpu.so: file too short"
    if selection.HAS_TORCH:
        assert " (importing torch: " in run_cli(DOCTOR, environ).stdout.replace("\n", " ")


@pytest.mark.slow
def test_hosts_of_a_lab_are_compared_and_one_that_is_gone_is_named(make_hosts, environ, tmp_path):
    hosts = make_hosts("head", "n01", "n02", "n03")
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "train.py").write_text("pass\n")
    site = Site(hosts, environ, folder)

    def doctor(*words, **more):
        line = [*DOCTOR, "--json", "--hosts", "n[01-03]", *words]
        return hosts["head"].run(line, {**site.env, **more}, cwd=folder, timeout=90)

    done = doctor("train.py", **STALE)
    assert not done.stderr
    answer = json.loads(done.stdout)
    assert answer["hosts"] == ["n01", "n02", "n03"]
    assert set(findings(done)) == {"stale"}
    assert [facts["master"]["problem"] for facts in answer["facts"]] == ["", "", ""]
    assert {facts["master"]["interface"] for facts in answer["facts"][1:]} == {"eth0"}
    clocks = answer["facts"][0]["master"]["clocks"]
    assert set(clocks) == {"1", "2"}
    assert all(abs(ahead) <= trip for ahead, trip in clocks.values())  # the hosts of a lab share one clock
    assert {facts["script"]["size"] for facts in answer["facts"]} == {5}

    done = doctor(GLOO_SOCKET_IFNAME="ib77")
    assert done.returncode == 125
    assert findings(done)["ifname"].startswith("all 3 hosts: GLOO_SOCKET_IFNAME=ib77 names no interface; there are ")

    # Under an administrator who wants `--check full`, doctor's own launch does not ask doctor again.
    (tmp_path / "site.toml").write_text('[launch]\ncheck = "full"\n')
    hosts["n02"].vanish()
    done = doctor("--bundle", str(tmp_path / "ticket.zip"), EZPZ_SITE_TOML=str(tmp_path / "site.toml"))
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["hosts"], set(findings(done))) == (125, ["n01", "n03"], {"silent"}), done.stdout
    why = "client of shared ended with 255: ssh: connect to host n02 port 22: No route to host"
    assert findings(done)["silent"] == f"n02 does not answer: {why}"
    assert [facts["master"]["problem"] for facts in answer["facts"]] == ["", ""]  # they have met without it
    with zipfile.ZipFile(tmp_path / "ticket.zip") as bundle:
        assert json.loads(bundle.read("doctor.json"))["hosts"] == ["n01", "n03"]
        assert not [name for name in bundle.namelist() if name.startswith("launch/")]
    text = hosts["head"].run([*DOCTOR, "--hosts", "n[01-03]"], site.env, cwd=folder, timeout=90)
    assert "problem  n02 does not answer: client of shared ended with 255" in text.stdout, text.stdout + text.stderr
    assert text.stdout.splitlines()[-2].startswith("3 hosts: 1 problem, ")
    hosts["n03"].vanish()
    done = doctor("--hosts", "n[02-03]")
    assert (done.returncode, json.loads(done.stdout)["hosts"]) == (125, [])
    assert [each["text"] for each in json.loads(done.stdout)["findings"]] == [f"n02, n03 do not answer: {why}"]
    assert not [*(tmp_path / "state").rglob("*doctor-*")]
    assert not [*(tmp_path / "state").rglob("run.json")], "its launches are none of the user's"


ILL = {  # what a host does when ssh comes to it, and what doctor says of that
    "n02": ("echo 'Host key verification failed.' >&2; exit 255", "ended with 255: Host key verification failed."),
    "n03": ("echo 'bash: python3: No such file' >&2; exit 127", "ended with 127: bash: python3: No such file"),
    "n04": ("sleep 600", "n04 does not answer: nothing came within "),
}


@pytest.mark.slow
def test_every_ill_host_is_named_with_the_line_that_tells_why(make_hosts, environ, tmp_path, tag):
    hosts = make_hosts("head", "n01", *ILL, "n05", "n06")
    site = Site(hosts, environ, tmp_path / "shared")
    for name, (does, _) in ILL.items():
        (hosts[name].tmp / "enter").write_text(does)
    line = [*DOCTOR, "--json", "--hosts", "n[01-06]"]
    done = hosts["head"].run(line, site.env, cwd=tmp_path, timeout=150)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["hosts"]) == (125, ["n01", "n05", "n06"])
    told = {
        ",".join(each["hosts"]): each["text"] for each in answer["findings"] if each["check"] in {"silent", "launch"}
    }
    assert list(told) == list(ILL), told
    for name, (_, said) in ILL.items():
        assert said in told[name]
    assert "SIGTERM" not in done.stdout
    process.kill_all(process.survivors(tag))  # of the stand-in for ssh, on the other side


def test_on_a_terminal_words_have_colors_and_nothing_is_an_escape_to_be_read(in_process, environ):
    done = in_process(["doctor", "nowhere\x1b[2J.py"], {**environ, **STALE, "FORCE_COLOR": "1"})
    assert done.stdout.startswith("\x1b[31mproblem\x1b[0m  cannot read\n")
    assert "\n\x1b[33mnote\x1b[0m     this shell is no rank" in done.stdout
    assert "nowhere\\x1b[2J.py" in done.stdout


def test_a_bundle_holds_what_a_ticket_needs_and_no_secret(run_cli, environ, tmp_path):
    environ = {**environ, "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz01"}
    rank = [shutil.which("echo"), "--token", environ["HF_TOKEN"]]
    assert run_cli([sys.executable, "-m", "ezpz.launch", "-n", "1", "--", *rank], environ).returncode == 0
    done = run_cli([*DOCTOR, "--bundle", "ticket.zip"], environ)
    assert "written: ticket.zip" in done.stderr
    with zipfile.ZipFile(tmp_path / "ticket.zip") as bundle:
        texts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert {"README.txt", "doctor.json", "where.json", "launch/run.json"} <= set(texts)
    assert json.loads(texts["doctor.json"])["facts"][0]["python"]["path"] == sys.executable
    assert environ["HF_TOKEN"] not in "".join(texts.values())
    again = run_cli([*DOCTOR, "--bundle", "ticket.zip"], environ)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)


REFUSED = [
    (["--hosts", "n01", "--job"], "--hosts and --job are both given"),
    (["--hosts", "n[1"], "n[1"),
    (["--hosts", "n01,n01"], "ezpz: n01 is named twice"),
    (["--hosts="], "--hosts is empty (from the command line)"),
    (["--bundle="], "--bundle is empty (from the command line)"),
    (["--outdir="], "--outdir is empty (from the command line)"),
    (["--job"], "--job (from the command line): this shell is in no job"),
    (["--bundle", "no/folder/x.zip"], "cannot write no/folder/x.zip (from --bundle)"),
]


def test_what_cannot_be_done_is_one_error(in_process, environ, subtests):
    for words, said in REFUSED:
        with subtests.test(str(words)):
            done = in_process(["doctor", *words], environ)
            assert done.returncode == 2, done.stderr
            assert said in done.stderr
            assert done.stderr.count("ezpz: ") == 1
            assert "Traceback" not in done.stderr
