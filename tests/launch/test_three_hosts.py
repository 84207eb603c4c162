"""Placement, environment and binding as the ranks see them, over three hosts, on every flavour that has hosts."""

import json
import os

import pytest

from lab.flavours import remote
from lab.shown import SHOW, SHOW_CPUS, shown
from lab.ssh import LAUNCH


@pytest.fixture
def three(make_hosts):
    return make_hosts("head", "n01", "n02", "n03")


def test_uneven_blocks_a_subset_and_an_excluded_host_come_out_as_planned(flavour, three, tmp_path):
    env = flavour.env(MINE="a 'b' \"c\"", NCCL_DEBUG="INFO", **remote(three))
    (tmp_path / "hosts").write_text("n01:2\nn02:1\nn03:3\n")

    def run(*options):
        done = three["head"].run([*LAUNCH, *options, *SHOW, "x y"], env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return shown(done.stdout)

    uneven = run("--hostfile", "hosts", "--unset", "NCCL_DEBUG")
    assert [host for _, _, host, _ in uneven] == ["n01"] * 2 + ["n02"] + ["n03"] * 3
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    told = ["".join(environ[name] for name in names) for environ, *_ in uneven]
    assert told == ["0020", "1120", "2011", "3032", "4132", "5232"]
    said = {(environ["MASTER_ADDR"], environ["MINE"], *argv) for environ, argv, _, _ in uneven}
    assert said == {("n01", "a 'b' \"c\"", "x y")}

    subset = run("--hosts", "n03,n01", "--ppn", "2")
    assert [host for _, _, host, _ in subset] == ["n03", "n03", "n01", "n01"]
    assert {environ["MASTER_ADDR"] for environ, *_ in subset} == {"n03"}

    rest = run("--hosts", "n[01-03]", "--exclude", "n02", "--ppn", "1")
    assert [host for _, _, host, _ in rest] == ["n01", "n03"]


def test_a_binding_reaches_every_rank(flavour, three, tmp_path):
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one CPU")
    env = flavour.env(**remote(three))
    for spec, expected in ((f"list:{allowed[1]}:{allowed[0]}", [[allowed[1]], [allowed[0]]]), ("auto", None)):
        line = [*LAUNCH, "--hosts", "n01,n02", "--ppn", "2", "--cpu-bind", spec, *SHOW_CPUS]
        done = three["head"].run(line, env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        told = dict(json.loads(line) for line in done.stdout.splitlines())
        ranks = [told[str(rank)] for rank in range(4)]
        if expected:
            assert ranks == expected * 2
        else:
            assert sorted(ranks[0] + ranks[1]) == sorted(ranks[2] + ranks[3]) == allowed
            assert not set(ranks[0]) & set(ranks[1])


def test_a_host_that_cannot_be_reached_is_named_with_the_launchers_own_words(flavour, three, tmp_path):
    three["n02"].vanish()
    env = flavour.env(XDG_STATE_HOME=str(tmp_path), **remote(three))
    done = three["head"].run([*LAUNCH, "--hosts", "n01,n02,n03", "--ppn", "1", "true"], env, cwd=tmp_path)
    assert done.returncode == 125, done.stderr
    assert "no rank reported that it came up: of n02 it says '" in done.stderr.splitlines()[-1]
    (path,) = tmp_path.glob("ezpz/launches/*/run.json")
    record = json.loads(path.read_text())
    assert record["cause"]["host"] == "n02"
    assert "No route to host" in record["launcher_words"]
