"""The table of sites, and which of them this host is. `test_site_shell` asks the shell in these cases."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from ezpz.cluster import site as site_module
from ezpz.cluster.cache import keep
from ezpz.cluster.site import PACKAGED, host_names, load, recognise, user_file
from ezpz.cluster.site_table import KEYS, PLACEHOLDERS
from ezpz.errors import MachineError, UsageError

ROOT = Path(__file__).parents[2]
HOSTNAME = "/proc/sys/kernel/hostname"
FILE = "/home/me/.config/ezpz/sites.toml"
HOME = {"HOME": "/home/me"}


def nothing(_):
    return None


def files(node="laptop", own=None, **others):
    """Return a reader of a host called `node`, with the user's own table and other files."""
    return {HOSTNAME: f"{node}\n", FILE: own, **others}.get


@pytest.fixture(scope="module")
def packaged():
    return load({}, nothing)


def test_every_packaged_site_can_be_trusted(packaged, subtests):
    for site in packaged.values():
        with subtests.test("it says where its facts come from", site=site.name):
            assert all((site.centre, site.source, site.date, site.confidence == "docs", site.python or site.modules))
            assert set(site.origins.values()) == {PACKAGED}
        with subtests.test("it is recognised by more than one kind of evidence", site=site.name):
            how = site.recognise
            assert sum(map(bool, (how.variables, how.domains, how.hosts))) >= 2
        with subtests.test("it is not recognised by names that others share", site=site.name):
            shared = ("login", "nid", "uan", "x1*", "x1[", "c1", "c[", "c*", "*", "[")
            assert not [name for name in site.recognise.hosts if name.startswith(shared)]
            assert not [name for name in site.recognise.domains if name.count(".") + name.count("-") < 1]
        with subtests.test("it binds only to CPUs that it has and leaves free", site=site.name):
            assert_cpus_are_there(site)
        with subtests.test("it has no devices on CPU hosts only", site=site.name):
            for values in ({"device": site.device, "count": site.devices_per_host}, *map(kind_of, site.variants)):
                assert (values["device"] != "cpu") or not values["count"]
            assert len(site.device_cpus) in {0, site.devices_per_host}
        with subtests.test("it derives only what it says", site=site.name):
            for name in site.derived:
                value = site
                for part in name.split("."):
                    value = value[part] if isinstance(value, dict) else getattr(value, part)
                assert value


def assert_cpus_are_there(site):
    for ranks, binding in site.cpu_bind.items():
        kind, _, groups = binding.partition(":")
        if kind == "list":
            taken = [cpu for group in groups.split(":") for cpu in cpus(group)]
            assert len(groups.split(":")) == int(ranks)
            assert len(taken) == len(set(taken))
            assert max(taken) < (site.threads or site.cores)
            assert not set(taken) & set(site.reserved_cpus)


def cpus(group):
    for part in group.split(","):
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)


def kind_of(variant):
    return (
        {"device": variant.keys["device"], "count": variant.keys.get("devices_per_host")}
        if ("device" in variant.keys)
        else {"device": "", "count": None}
    )


def test_the_documentation_explains_every_key_and_placeholder_and_no_other():
    text = (ROOT / "docs" / "sites.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    told = rows - {f"{{{name}}}" for name in PLACEHOLDERS}
    parts = "recognise.variables recognise.domains recognise.hosts variant.when variant.name"
    assert told == {*KEYS, *parts.split()}
    assert rows - told == {f"{{{name}}}" for name in PLACEHOLDERS}


def test_the_documentation_names_every_packaged_site(packaged):
    text = (ROOT / "docs" / "sites.md").read_text(encoding="utf-8")
    assert [name for name in packaged if f"`{name}`" not in text] == []


WISHES = [
    ({"EZPZ_SITE": "lumi", "NERSC_HOST": "perlmutter"}, "", ("lumi", "EZPZ_SITE")),
    ({"EZPZ_SITE": "lumi", "EZPZ_JOBID": "7"}, "7", ("lumi", "EZPZ_SITE")),
    ({"EZPZ_SITE": "lumi", "EZPZ_JOBID": "7", "NERSC_HOST": "perlmutter"}, "8",
     ("perlmutter", "NERSC_HOST=perlmutter")),
    ({"EZPZ_SITE": "lumi", "EZPZ_JOBID": "", "TACC_SYSTEM": "ls6"}, "8", ("lonestar6", "TACC_SYSTEM=ls6")),
    ({"EZPZ_SITE": "lumi", "EZPZ_JOBID": "7"}, "8", ("lumi", "EZPZ_SITE")),
    ({"EZPZ_SITE": "", "TACC_SYSTEM": "ls6"}, "", ("lonestar6", "TACC_SYSTEM=ls6")),
    ({"EZPZ_SITE": "vista", "EZPZ_JOBID": "7", "NERSC_HOST": "perlmutter", "TACC_SYSTEM": "vista"}, "",
     ("vista", "TACC_SYSTEM=vista")),
    ]  # fmt: skip


def test_the_users_word_counts_unless_it_is_of_another_job(subtests):
    for environ, job, expected in WISHES:
        with subtests.test(environ=environ, job=job):
            found = recognise(environ, files(), job)
            assert (found.site.name, found.origin) == expected


def test_an_unknown_wish_is_told_with_the_nearest_names():
    with pytest.raises(UsageError, match=r"unknown site: 'lonestar' \(from EZPZ_SITE\); expected one of lonestar6\."):
        recognise({"EZPZ_SITE": "lonestar"}, files())


def test_an_unknown_machine_is_an_ordinary_answer():
    assert tuple(recognise({}, files())) == (None, "no site's variables or host names")


def test_variables_of_two_sites_are_an_error_that_says_what_to_type():
    with pytest.raises(MachineError) as raised:
        recognise({"NERSC_HOST": "perlmutter", "LMOD_SYSTEM_NAME": "frontier"}, files())
    assert str(raised.value) == (
        "two sites: perlmutter (from NERSC_HOST=perlmutter) and frontier (from LMOD_SYSTEM_NAME=frontier); expected "
        "variables of one machine. Say which with `export EZPZ_SITE=perlmutter` or `export EZPZ_SITE=frontier`."
    )


def test_two_variables_of_one_site_are_none():
    assert (
        recognise({"NERSC_HOST": "perlmutter", "SLURM_CLUSTER_NAME": "perlmutter"}, files()).site.name == "perlmutter"
    )


NAMES = [
    ("login2.LS6.tacc.utexas.edu", {"/etc/hosts": "1.1.1.1 other.example login2.ls6.tacc.utexas.edu"},
     ("login2.ls6.tacc.utexas.edu",)),
    ("login2", {}, ("login2",)),
    ("login2", {"/etc/hosts": "# login2\n::1 localhost\n10.0.0.2 login2.A.org login2 # x\n10.0.0.3 b.org login2"},
     ("login2", "login2.a.org")),
    ("login2", {"/etc/hosts": "127.0.1.1 login2"}, ("login2",)),
    ("login2", {"/etc/hosts": "10.0.0.2 login22.a.org login22"}, ("login2",)),
    ("login2", {"/etc/resolv.conf": "nameserver 1.1.1.1\nsearch a.org b.org\n"}, ("login2", "login2.a.org")),
    ("login2", {"/etc/resolv.conf": "domain a.org\n"}, ("login2", "login2.a.org")),
    ("login2", {"/etc/resolv.conf": "search # a.org\n# domain b.org\n"}, ("login2",)),
    ("login2", {"/etc/hosts": "10.0.0.2 login2.a.org login2", "/etc/resolv.conf": "search b.org"},
     ("login2", "login2.a.org", "login2.b.org")),
    ]  # fmt: skip


def test_the_names_of_a_host_come_from_three_files(subtests):
    for node, others, expected in NAMES:
        with subtests.test(node=node, **others):
            assert host_names(files(node, **others)) == expected


def test_the_kernel_is_asked_where_proc_is_missing():
    assert host_names(nothing)[0]


VARIANTS = [
    ({"TACC_SYSTEM": "stampede3"}, ("cpu", None, "", "own")),
    ({"TACC_SYSTEM": "stampede3", "SLURM_JOB_PARTITION": "h100"}, ("cuda", 4, "", "own")),
    ({"TACC_SYSTEM": "stampede3", "SLURM_JOB_PARTITION": "pvc"}, ("xpu", 8, "pytorch", "modules")),
    ({"TACC_SYSTEM": "ls6", "SLURM_JOB_PARTITION": "gpu-h100"}, ("cuda", 2, "", "own")),
    ({"TACC_SYSTEM": "ls6", "SLURM_JOB_PARTITION": "gpu-a100-small"}, ("cuda", None, "", "own")),
    ({"EZPZ_SITE": "perlmutter", "SLURM_JOB_PARTITION": "regular_milan_ss11"}, ("cpu", 0, "", "modules")),
]


def test_a_job_gets_the_values_of_its_variant(subtests):
    for variables, expected in VARIANTS:
        with subtests.test(variables=variables):
            site = recognise(variables, files()).site
            assert (site.device, site.devices_per_host, site.conda, site.python) == expected


def test_variants_add_up_and_say_so():
    site = recognise({"SLURM_CLUSTER_NAME": "lumi", "SLURM_JOB_PARTITION": "standard-g"}, files()).site
    assert (site.devices_per_host, list(site.cpu_bind)) == (8, ["8"])
    assert site.origins["cpu_bind"] == f"{PACKAGED}, variant LUMI-G, whole hosts"
    assert site.origins["scheduler"] == PACKAGED
    assert not recognise({"SLURM_CLUSTER_NAME": "lumi", "SLURM_JOB_PARTITION": "dev-g"}, files()).site.cpu_bind


def test_the_users_file_adds_sites_and_overrides_single_keys(packaged):
    own = """
[site.polaris]
modules = [["conda/2026-01-01", "conda"]]
[site.polaris.cpu_bind]
2 = "list:0-15:16-31"
[site.den]
scheduler = "none"
device = "cuda"
[site.den.recognise]
hosts = ["den[0-9]"]
"""
    sites = load(HOME, files(own=own))
    assert sites["polaris"].modules == (("conda/2026-01-01", "conda"),)
    assert (sites["polaris"].conda, set(sites["polaris"].cpu_bind)) == ("base", {"2", "4"})
    assert (sites["polaris"].origins["modules"], sites["polaris"].origins["conda"]) == (FILE, PACKAGED)
    assert list(sites)[-1] == "den"
    assert [site.name for site in sites.values() if site.is_users] == ["polaris", "den"]
    assert recognise(HOME, files("den4", own)).origin == "the host name den4"
    assert load({}, files(own=own)).keys() == packaged.keys()


def test_what_the_user_says_is_derived_no_longer():
    own = '[site.polaris.cpu_bind]\n4 = "list:0-7:8-15:16-23:24-31"\n'
    assert "cpu_bind.4" not in load(HOME, files(own=own))["polaris"].derived


def test_the_users_own_site_is_asked_before_a_packaged_one():
    own = '[site.mine]\nscheduler = "slurm"\n[site.mine.recognise]\nvariables = { NERSC_HOST = ["perl*"] }\n'
    assert recognise({**HOME, "NERSC_HOST": "perlmutter"}, files(own=own)).site.name == "mine"


def test_the_users_file_stands_where_configuration_does():
    assert user_file({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}) == "/x/ezpz/sites.toml"
    assert user_file({"HOME": "/h", "XDG_CONFIG_HOME": ""}) == "/h/.config/ezpz/sites.toml"
    assert user_file({}) == ""


NEW = '[site.x]\nscheduler = "slurm"\n'
BAD = {
    "not TOML": ("[site.x\n", "line 1"),
    "another top": ("[sites.x]\n", "unknown key: sites = .*expected site"),
    "no table": ("site = 1\n", "bad value: site = 1"),
    "a name": ('[site."a b"]\n', "bad value: a b"),
    "an unknown key": (NEW + "devices_per_hosts = 4\n",
     r"unknown key: devices_per_hosts = 4 .*\[site.x\]\); expected devices_per_host\. "),
    "a far key": (NEW + "zzz = 4\n", "unknown key: zzz = 4 .*expected one of centre, "),
    "a key of recognise": (NEW + "[site.x.recognise]\ndomain = []\n",
     r"unknown key: domain = .*\[site.x.recognise\]\); expected domains"),
    "a key of a variant": (NEW + "[[site.x.variant]]\nif = {}\n", "unknown key: if = "),
    "no scheduler": ('[site.x]\ndevice = "cpu"\n', "incomplete site: x has no scheduler"),
    "a scheduler": ('[site.x]\nscheduler = "sge"\n', "scheduler = 'sge' .*expected one of 'flux', 'slurm', 'pbs'"),
    "a launcher": (NEW + 'launcher = "prun"\n',
     "launcher = 'prun' .*expected one of 'local', 'impi', 'openmpi', 'pals'"),
    "a number": (NEW + 'cores = "64"\n', "cores = '64' .*whole number"),
    "a truth": (NEW + "cores = true\n", "cores = True .*whole number"),
    "a negative": (NEW + "cores = -1\n", "cores = -1"),
    "no flag": (NEW + "node_local_is_memory = 1\n", "true or false"),
    "no list": (NEW + 'module_use = "/soft"\n', "module_use = '/soft' .*expected a list"),
    "a mixed list": (NEW + "reserved_cpus = [0, 1.5]\n", "reserved_cpus = 1.5"),
    "no table of variables": (NEW + "environment = []\n", "environment = .*a table"),
    "a variable": (NEW + 'environment = { "A-B" = "1" }\n', "environment = 'A-B' .*name of a variable"),
    "a value": (NEW + "environment = { A = 1 }\n", "environment.A = 1"),
    "a placeholder": (NEW + 'address = "{shrt}.hsn"\n',
     r"address = '\{shrt\}.hsn' .*only \{host\}, \{short\} and \{ip\}"),
    "one of another key": (NEW + 'node_local = "/tmp/{host}"\n', r"only \{user\} and \{jobid\}"),
    "an open brace": (NEW + 'address = "{short"\n', "address = "),
    "a negated pattern": (NEW + '[site.x.recognise]\nhosts = ["[!a]b"]\n', r"hosts = '\[!a\]b' .*patterns"),
    "a pattern of all": (NEW + '[site.x.recognise]\nhosts = ["*"]\n', r"hosts = '\*'"),
    "an open pattern": (NEW + '[site.x.recognise]\nhosts = ["a[0-9"]\n', "hosts = "),
    "capitals": (NEW + '[site.x.recognise]\ndomains = ["*.X.org"]\n', "small letters"),
    "a regular expression": (NEW + '[site.x.recognise]\nvariables = { A = ["^a$"] }\n', r"variables.A = '\^a\$'"),
    "a condition": (NEW + '[[site.x.variant]]\nwhen = "gpu"\n', "when = 'gpu'"),
    "no condition": (NEW + "[[site.x.variant]]\ncores = 1\n", "when = None"),
    "a module with blanks": (NEW + 'modules = ["a b"]\n', "modules = 'a b'"),
    "a module that is an option": (NEW + 'modules = ["-f"]\n', "modules = '-f'"),
    "alternatives of nothing": (NEW + "modules = [[]]\n", "modules = "),
    "a command": (NEW + 'modules = ["$(id)"]\n', r"modules = '\$\(id\)'"),
    "a binding": (NEW + 'cpu_bind = { 2 = "list:0-3" }\n',
     "cpu_bind.2 = 'list:0-3' .*expected 2 groups, one per rank, not 1"),
    "a binding of none": (NEW + 'cpu_bind = { 0 = "cores" }\n', "cpu_bind = '0'"),
    "a binding's word": (NEW + 'cpu_bind = { any = "core" }\n', "cpu_bind.any = 'core'"),
    "a date": (NEW + "date = 2026-08-19\n", "date = datetime.date"),
    "a line feed": (NEW + 'centre = "A\\nB"\n', "centre = "),
    "derived from nothing": (NEW + 'derived = ["foo"]\n', "derived = 'foo'"),
}  # fmt: skip


def test_a_bad_table_is_one_line_that_names_file_and_key(subtests):
    for name, (text, words) in BAD.items():
        with subtests.test(name):
            with pytest.raises(UsageError, match=words) as raised:
                load(HOME, files(own=text))
            message = str(raised.value)
            assert f"(from {FILE}" in message
            assert "\n" not in message
            assert raised.value.exit_code == 2


def test_the_packaged_table_is_read_once_and_nothing_at_import(tmp_path):
    code = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from ezpz.cluster import site
assert "tomllib" not in sys.modules and "tomli" not in sys.modules
assert not [path for path in opened if path.endswith(".toml")]
first = site.load({}, lambda _: None)
opened.clear()
assert site.load({}, lambda _: None).keys() == first.keys()
assert not opened, opened
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)


def test_what_was_parsed_once_is_kept_and_is_the_same(tmp_path, monkeypatch):
    def tables():
        """What another process finds, whose copy of the module has read nothing."""
        spec = spec_from_file_location("ezpz.cluster.site", site_module.__file__)
        fresh = module_from_spec(spec)
        spec.loader.exec_module(fresh)
        return [repr(site) for site in fresh.load({"XDG_CACHE_HOME": str(tmp_path)}, nothing).values()]

    first = tables()
    assert "perlmutter" in str(first)
    with monkeypatch.context() as patch:
        patch.setattr("ezpz.cluster.site_table.parse", lambda *_: pytest.fail("parsed again"))
        assert tables() == first
    [kept] = (tmp_path / "ezpz").iterdir()
    kept.write_text("{broken")
    assert tables() == first
    assert tables() == first


def test_a_home_that_is_not_there_is_not_made(tmp_path):
    load({"HOME": str(tmp_path / "none")}, lambda _: None)
    keep({"HOME": str(tmp_path / "none")}, "x", {})
    assert list(tmp_path.iterdir()) == []
