"""Where the ranks meet."""

import itertools
import json
import re
import socket
import sys
from types import SimpleNamespace

import pytest

from ezpz.cluster.network import Route
from ezpz.cluster.site import Recognise, Site
from ezpz.errors import LaunchError, UsageError
from ezpz.launch import Placement, master
from ezpz.launch.master import ListenAddress, choose_address, choose_port, listening

HERE = Placement(("localhost",), (2,), "-n")
OTHERS = Placement(("192.0.2.7", "192.0.2.8"), (1, 1), "--hosts")


def test_on_one_host_the_ranks_meet_on_loopback():
    assert tuple(choose_address(HERE, {}, None))[:2] == ("127.0.0.1", "all ranks are here")
    assert choose_address(HERE, {"MASTER_ADDR": "10.0.0.1"}, None).address == "10.0.0.1"
    assert choose_address(HERE, {"MASTER_ADDR": "10.0.0.1", "RANK": "0"}, None).address == "127.0.0.1"


def test_on_several_hosts_it_is_the_first_one():
    assert tuple(choose_address(OTHERS, {}, None))[:2] == ("192.0.2.7", "first host")
    assert tuple(choose_address(OTHERS, {"MASTER_ADDR": "192.0.2.9"}, None))[:2] == ("192.0.2.9", "MASTER_ADDR")


def test_a_site_names_hosts_by_its_own_rule_and_a_name_that_is_unknown_here_is_told():
    site = Site("toy", "pbs", recognise=Recognise(), address="{ip}")
    assert tuple(choose_address(OTHERS, {}, site))[:2] == ("192.0.2.7", "first host")
    site = Site("toy", "pbs", recognise=Recognise(), address="{short}.hsn.invalid")
    address = choose_address(OTHERS, {}, site)
    assert address.address == "192.0.2.7"
    assert "192.hsn.invalid, as site toy names it, does not resolve here" in address.note


def test_loopback_for_several_hosts_is_refused(subtests):
    for value in ["localhost", "127.0.0.1", "::1"]:
        with subtests.test(value), pytest.raises(UsageError, match=r"MASTER_ADDR.*2 hosts from .* on.*unset MASTER_A"):
            choose_address(OTHERS, {"MASTER_ADDR": value}, None)


def test_a_first_host_that_is_unknown_is_refused():
    with pytest.raises(LaunchError, match=r"no address of nosuch\.invalid .*export MASTER_ADDR"):
        choose_address(Placement(("nosuch.invalid", "192.0.2.8"), (1, 1), "--hosts"), {}, None)


def test_a_host_that_is_none_of_the_jobs_need_not_know_their_names():
    placement = Placement(("nosuch.invalid", "other.invalid"), (1, 1), "-n")
    site = Site("toy", "pbs", recognise=Recognise(), address="{short}.hsn.invalid")
    address = choose_address(placement, {}, site, must_know=False)
    assert address.address == "nosuch.hsn.invalid"
    assert "nosuch.hsn.invalid is unknown on this host" in address.note


def test_the_port_on_this_host_is_held_and_rank_0_can_still_listen_on_it():
    port, origin, held = choose_port(HERE, {})
    with held, socket.socket() as other, socket.socket() as store:
        assert "held" in origin
        with pytest.raises(OSError, match="in use"):
            other.bind(("", port))
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("", port))
        store.listen()


def test_a_users_port_that_is_taken_names_its_holder():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        told = rf"port {port} \(from MASTER_PORT\).*by \S+ \(pid \d+\).*unset MASTER_PORT"
        with pytest.raises(UsageError, match=told):
            choose_port(HERE, {"MASTER_PORT": str(port)})
    chosen, origin, held = choose_port(HERE, {"MASTER_PORT": str(port)})
    held.close()
    assert (chosen, origin) == (port, "MASTER_PORT")


def test_what_is_no_port_is_refused(subtests):
    for value in ["x", "0", "65536", "-1"]:
        with subtests.test(value), pytest.raises(UsageError, match="MASTER_PORT"):
            choose_port(HERE, {"MASTER_PORT": value})


def test_on_another_host_a_port_is_named_and_cannot_be_held():
    port, _, held = choose_port(OTHERS, {})
    assert 20_000 <= port < 32_000
    assert held is None


THREE = Placement(("localhost", "n01", "n02", "n03"), (1, 1, 1, 1), "--hosts")


def routes(monkeypatch, addresses):
    monkeypatch.setattr(master, "route_to", lambda host: Route("", addresses.get(host, ""), ""))


def test_agents_are_awaited_on_the_interface_that_leads_to_all_hosts(monkeypatch):
    routes(monkeypatch, dict.fromkeys(("n01", "n02", "n03"), "10.0.0.1"))
    assert listening(THREE) == ListenAddress("10.0.0.1", ("10.0.0.1",), "the route to all 3 other hosts")
    one = Placement(("n01",), (1,), "--hosts")
    assert listening(one) == ListenAddress("10.0.0.1", ("10.0.0.1",), "the route to n01")
    assert listening(HERE) == ListenAddress("127.0.0.1", ("127.0.0.1",), "all ranks are here")


def test_hosts_that_are_other_names_of_this_one_need_loopback_alone(monkeypatch):
    routes(monkeypatch, dict.fromkeys(("n01", "n02", "n03"), "127.0.0.1"))
    assert listening(THREE).address == "127.0.0.1"


def test_where_routes_differ_or_are_not_known_it_is_all_interfaces(monkeypatch):
    me = socket.gethostname()
    routes(monkeypatch, {"n01": "10.0.0.1", "n02": "10.1.0.1", "n03": "10.0.0.1"})
    why = "10.0.0.1 is the way to n01; 10.1.0.1 is the way to n02"
    assert listening(THREE) == ListenAddress("", ("10.0.0.1", "10.1.0.1", me), why, exposed=True)
    routes(monkeypatch, {"n01": "10.0.0.1", "n03": "127.0.0.1"})
    assert listening(THREE) == ListenAddress("", ("10.0.0.1", me), "this host knows no route to n02", exposed=True)
    seconds = itertools.count()  # a name server that takes its time
    monkeypatch.setattr("ezpz.launch.master.time", SimpleNamespace(monotonic=lambda: 1.5 * next(seconds)))
    why = "it took more than 2 s to look up 1 of 3 hosts"
    assert listening(THREE) == ListenAddress("", ("10.0.0.1", me), why, exposed=True)


def test_of_many_hosts_with_unknown_names_few_are_looked_up(monkeypatch):
    many, asked = Placement(tuple(f"n{index}" for index in range(10_000)), (1,) * 10_000, "--hosts"), []
    monkeypatch.setattr(master, "is_here", lambda host: False)
    monkeypatch.setattr(master, "route_to", lambda host: asked.append(host) or Route("", "", ""))
    assert listening(many).origin == "this host knows no route to n0"
    assert len(asked) < 20


@pytest.mark.slow
def test_all_interfaces_are_told(run_cli, clean_env):
    env = {**clean_env, "MASTER_ADDR": "192.0.2.1"}
    line = [sys.executable, "-m", "ezpz.launch", "--flavour", "ssh", "--hosts", "localhost,nowhere.invalid"]
    shown = json.loads(run_cli([*line, "--json", "true"], env).stdout)
    why = "this host knows no route to nowhere.invalid"
    assert shown["listening"] == {"address": "0.0.0.0", "origin": why}
    assert f"agents are awaited on all interfaces: {why}" in shown["notes"]
    assert f"note: agents are awaited on all interfaces: {why}" in run_cli([*line, "--dry-run", "true"], env).stderr
    explained = run_cli([*line, "--explain", "true"], env).stdout
    assert re.search(rf"listening +all interfaces  \[{why}\]", explained)
    here = [sys.executable, "-m", "ezpz.launch", "-n", "2", "--json"]
    assert json.loads(run_cli([*here, "--flavour", "local", "true"]).stdout)["listening"] is None
    ssh = json.loads(run_cli([*here, "--flavour", "ssh", "true"]).stdout)["listening"]
    assert ssh == {"address": "127.0.0.1", "origin": "all ranks are here"}
