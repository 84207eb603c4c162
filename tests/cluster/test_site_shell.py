"""The shell's half of the sites: it answers as Python does, in bash and zsh, and the packaged block is up to date."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ezpz.cluster.site import host_names, load, recognise
from ezpz.cluster.site_shell import BEGIN, END, block, main, write
from ezpz.errors import MachineError, UsageError
from lab import process
from lab.require import require

UTILS = Path(__file__).parents[2] / "src/ezpz/bin/utils.sh"
SHELLS = {"bash": ["bash", "--noprofile", "--norc"], "zsh": ["zsh", "-f"]}
FILE = "/home/me/.config/ezpz/sites.toml"
FACTS = ("scheduler", "module_use", "modules", "conda", "python", "prepend_from", "proxy", "no_proxy", "proxy_skip")
SITES = load({}, lambda _: None)
MARKED = f"first\n{BEGIN}\nold\n{END}\nlast\n"

# name of the case: variables, node name, /etc/hosts, /etc/resolv.conf, the site ("" for none, "two sites" for a clash)
CASES = {
    "aurora job": (
        {"PBS_JOBID": "12.aurora-pbs-0001.hostmgmt.cm.aurora.alcf.anl.gov"},
        *("x4117c3s3b0n0", "", "", "aurora"),
    ),
    "aurora array": ({"PBS_JOBID": "12[3].aurora-pbs-0001"}, "n01", "", "", "aurora"),
    "aurora submit host": ({"PBS_JOBID": "12.head", "PBS_O_HOST": "aurora-uan-0009"}, "n01", "", "", "aurora"),
    "aurora login": ({}, "aurora-uan-0009", "", "", "aurora"),
    "aurora compute": ({}, "x4117c3s3b0n0", "", "", "aurora"),
    "aurora compute in full": ({}, "x4117c3s3b0n0.hsn.cm.aurora.alcf.anl.gov", "", "", "aurora"),
    "no aurora": ({}, "x41c3s3b0n0", "", "", ""),
    "polaris job": (
        {"PBS_JOBID": "308834.polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov"},
        *("x3016c0s1b0n0", "", "", "polaris"),
    ),
    "polaris login": ({}, "polaris-login-04", "", "", "polaris"),
    "polaris rack 3001": ({}, "x3001c0s37b1n0", "", "", "polaris"),
    "polaris rack 3016": ({}, "x3016c0s1b0n0", "", "", "polaris"),
    "polaris rack 3112": ({}, "x3112c0s1b0n0", "", "", "polaris"),
    "polaris rack 3212": ({}, "x3212c0s1b0n0", "", "", "polaris"),
    "rack 3017 of nobody": ({}, "x3017c0s1b0n0", "", "", ""),
    "rack 3113 of nobody": ({}, "x3113c0s1b0n0", "", "", ""),
    "rack 3200 is not polaris": ({}, "x3200c0s1b0n0", "", "", ""),
    "sirius in full": ({}, "x3200c0s1b0n0.hsn.cm.sirius.alcf.anl.gov", "", "", ""),
    "sirius login": ({}, "sirius-uan-0001", "", "", ""),
    "sophia job": ({"PBS_JOBID": "175972.sophia-pbs-01.lab.alcf.anl.gov"}, "sophia-gpu-02", "", "", "sophia"),
    "sophia compute": ({}, "sophia-gpu-02", "", "", "sophia"),
    "sophia by its domain": ({}, "sophia-gpu-02", "", "search lab.alcf.anl.gov", "sophia"),
    "another machine of that lab": ({}, "cer-login-04", "", "search lab.alcf.anl.gov", ""),
    "crux job": ({"PBS_JOBID": "12345.crux-pbs-0001.head.cm.crux.alcf.anl.gov"}, "x1000c0s0b1n1", "", "", "crux"),
    "crux login": ({}, "crux-login-01", "", "", "crux"),
    "crux compute": ({}, "x1000c0s1b0n0", "", "", "crux"),
    "sunspot compute": ({}, "x1921c1s4b0n0", "", "", ""),
    "sunspot in full": ({}, "x1921c1s4b0n0.hostmgmt2000.cm.americas.sgi.com", "", "", ""),
    "uan01": ({}, "uan01", "", "", ""),
    "perlmutter": ({"NERSC_HOST": "perlmutter"}, "login07", "", "", "perlmutter"),
    "perlmutter by Slurm": ({"SLURM_CLUSTER_NAME": "perlmutter"}, "nid001234", "", "", "perlmutter"),
    "perlmutter by domain": ({}, "login07", "", "search chn.perlmutter.nersc.gov", "perlmutter"),
    "another NERSC_HOST": ({"NERSC_HOST": "cori"}, "nid00123", "", "", ""),
    "login01 alone": ({}, "login01", "", "", ""),
    "nid001234 alone": ({}, "nid001234", "", "", ""),
    "frontier compute": ({}, "frontier00123", "", "", "frontier"),
    "frontier login": ({}, "login12.frontier", "", "", "frontier"),
    "frontier login in full": ({}, "login01.frontier.olcf.ornl.gov", "", "", "frontier"),
    "frontier by Lmod": ({"LMOD_SYSTEM_NAME": "frontier"}, "login01", "", "", "frontier"),
    "another frontier": ({}, "frontier1", "", "", ""),
    "andes": ({}, "andes338", "", "", "andes"),
    "andes login": ({}, "andes-login1", "", "", "andes"),
    "andes in full": ({}, "andes338.olcf.ornl.gov", "", "", "andes"),
    "another machine of olcf": ({}, "login1.olcf.ornl.gov", "", "", ""),
    "lumi login": ({}, "uan02", "10.0.0.2 uan02.lumi.csc.fi uan02", "", "lumi"),
    "lumi login outside": ({}, "lumi-uan02.csc.fi", "", "", "lumi"),
    "lumi compute": ({"SLURM_CLUSTER_NAME": "lumi"}, "nid005038", "", "", "lumi"),
    "another machine of csc": ({}, "uan02", "", "search mahti.csc.fi", ""),
    "alps": ({"CLUSTER_NAME": "clariden"}, "nid006363", "", "", "alps"),
    "alps login": ({}, "daint-ln002", "", "", "alps"),
    "alps by domain": ({}, "santis-ln001.alps.cscs.ch", "", "", "alps"),
    "eiger is not alps' GH200": ({"CLUSTER_NAME": "eiger"}, "eiger-ln001.alps.cscs.ch", "", "", ""),
    "somebody's cluster": ({"CLUSTER_NAME": "minikube"}, "laptop", "", "", ""),
    "vista": ({"TACC_SYSTEM": "vista"}, "c123-456", "", "", "vista"),
    "vista login": ({}, "login2.vista.tacc.utexas.edu", "", "", "vista"),
    "lonestar6 by variable": ({"TACC_SYSTEM": "ls6"}, "c316-001", "", "", "lonestar6"),
    "lonestar6 login": ({}, "login2.ls6.tacc.utexas.edu", "", "", "lonestar6"),
    "lonestar6 compute": ({}, "c316-001", "129.1.1.1 c316-001.ls6.tacc.utexas.edu c316-001", "", "lonestar6"),
    "frontera": ({}, "login2", "", "search frontera.tacc.utexas.edu", "frontera"),
    "frontera by variable": ({"TACC_SYSTEM": "frontera"}, "c401-064", "", "", "frontera"),
    "stampede3": ({}, "Login2.Stampede3.tacc.utexas.edu", "", "", "stampede3"),
    "stampede3 by variable": ({"TACC_SYSTEM": "stampede3"}, "c449-001", "", "", "stampede3"),
    "a TACC host without a domain": ({}, "c449-001", "", "", ""),
    "a new TACC machine": ({"TACC_SYSTEM": "horizon"}, "login1.horizon.tacc.utexas.edu", "", "", ""),
    "an empty variable": ({"NERSC_HOST": "", "TACC_SYSTEM": ""}, "laptop", "", "", ""),
    "blanks in a variable": ({"NERSC_HOST": "perlmutter perlmutter"}, "laptop", "", "", ""),
    "a pattern as a value": ({"NERSC_HOST": "*"}, "laptop", "", "", ""),
    "a name with shell words": ({}, "$(id).ls6.tacc.utexas.edu", "", "", "lonestar6"),
    "a variable beats a name": ({"NERSC_HOST": "perlmutter"}, "login2.vista.tacc.utexas.edu", "", "", "perlmutter"),
    "a domain beats a name": ({}, "polaris-login-01", "", "search ls6.tacc.utexas.edu", "lonestar6"),
    "a clash": ({"NERSC_HOST": "perlmutter", "LMOD_SYSTEM_NAME": "frontier"}, "login01", "", "", "two sites"),
    "a clash in another order": (
        {"TACC_SYSTEM": "vista", "PBS_O_HOST": "crux-login-01"},
        *("login01", "", "", "two sites"),
    ),
    "a clash of three": (
        {"TACC_SYSTEM": "vista", "PBS_O_HOST": "crux-login-01", "CLUSTER_NAME": "daint"},
        *("a", "", "", "two sites"),
    ),
    "two variables of one site": (
        {"LMOD_SYSTEM_NAME": "frontier", "SLURM_CLUSTER_NAME": "frontier"},
        *("a", "", "", "frontier"),
    ),
    "a job of polaris from crux": (
        {"PBS_JOBID": "1.polaris-pbs-01", "PBS_O_HOST": "crux-login-01"},
        *("a", "", "", "two sites"),
    ),
}  # fmt: skip

OWN = """
[site.den]
scheduler = "none"
module_use = ["/opt/a+b", "/soft"]
[site.den.recognise]
variables = { DEN = ["y?s*", "[0-9]"] }
domains = ["den*.example.org"]
hosts = ["den[0-3x]"]
[[site.den.variant]]
when = { DEN = ["yes"], DEN_ROOM = ["a*"] }
modules = [["one", "two"], "three"]
conda = "it"
[site.polaris]
conda = "mine"
"""


@pytest.fixture(params=sorted(SHELLS))
def shell(request, tmp_path):
    """Run a script with strict options and without any site's variables; gives what it printed."""
    if request.param == "zsh":
        require("zsh", None if shutil.which("zsh") else "no zsh on PATH")

    def run(script):
        emulate = "emulate -L sh\n" if request.param == "zsh" else ""
        text = f"function t {{\n{emulate}set -euo pipefail\n{script}\n}}\nt\n"
        done = process.run([*SHELLS[request.param], "-c", text], {"PATH": os.environ["PATH"]}, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def files(node, hosts, resolv, own=None):
    return {"/proc/sys/kernel/hostname": node, "/etc/hosts": hosts, "/etc/resolv.conf": resolv, FILE: own}.get


def ask(variables, names, match="ezpz__match_site"):
    """Return the script of one case: variables first, names where they told nothing."""
    sets = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    return f"""(
{sets}site='' site_from='' site_clash=''
{match} variables
if [ -z "$site$site_clash" ]; then {match} names {shlex.join(names)}; fi
printf '%s|%s|%s\\n' "$site" "$site_from" "$site_clash")
"""


def answer(variables, read):
    """Return Python's answer in the shell's words."""
    try:
        found = recognise(variables, read)
    except MachineError as error:
        return f"||{str(error).removeprefix('two sites: ').split('; expected')[0]}"
    return f"{found.site.name}|{found.origin}|" if found.site else "||"


def test_both_halves_name_the_same_site(shell):
    script, expected = block(SITES.values()), []
    for variables, node, hosts, resolv, _ in CASES.values():
        read = files(node, hosts, resolv)
        script += ask(variables, host_names(read))
        expected.append(answer(variables, read))
    assert shell(script).splitlines() == expected


def test_a_machine_is_known_and_no_other_is_taken_for_it(subtests):
    for name, (variables, node, hosts, resolv, expected) in CASES.items():
        with subtests.test(name):
            found = answer(variables, files(node, hosts, resolv))
            assert ("two sites" if found.startswith("||") and found != "||" else found.split("|")[0]) == expected


def test_the_cases_cover_every_site():
    assert {case[-1] for case in CASES.values()} == {*SITES, "", "two sites"}


def show(facts):
    return f'{facts}\nprintf "%s\\n" ' + " ".join(f'"$site_{fact}"' for fact in FACTS) + "\n"


def facts_of(site):
    words = {fact: getattr(site, fact) for fact in FACTS}
    words["module_use"] = " ".join(site.module_use)
    words["modules"] = " ".join("|".join(step) for step in site.modules)
    words["prepend_from"] = " ".join("=".join(pair) for pair in site.prepend_from.items())
    return list(words.values())


def test_both_halves_tell_the_same_facts(shell):
    script = block(SITES.values()) + "".join(show(f"ezpz__site_facts {name}") for name in SITES)
    assert shell(script).splitlines() == [word for site in SITES.values() for word in facts_of(site)]


def test_the_facts_of_a_job_are_those_of_its_variant(shell):
    job = {"TACC_SYSTEM": "stampede3", "SLURM_JOB_PARTITION": "pvc"}
    site = recognise(job, files("a", "", "")).site
    script = block(SITES.values()) + "SLURM_JOB_PARTITION=pvc\n" + show("ezpz__site_facts stampede3")
    assert shell(script).splitlines() == facts_of(site)
    assert site.conda == "pytorch"


def test_an_unknown_site_has_no_facts(shell):
    assert shell(block(SITES.values()) + "ezpz__site_facts mars || printf '%s' $?") == "1"


def test_nothing_else_is_left_behind(shell):
    script = block(SITES.values()) + ask({}, ["laptop"]) + 'printf "%s" "${name-unset}"\n'
    assert shell(script) == "||\nunset"


def test_the_users_own_sites_are_functions_of_their_own(shell):
    read = files("den2", "", "", OWN)
    sites = load({"HOME": "/home/me"}, read)
    text = block((site for site in sites.values() if site.is_users), user=True)
    cases = [({"DEN": "yes", "DEN_ROOM": "attic"}, "a"), ({"DEN": "7"}, "a"), ({}, "den2"), ({}, "denx"), ({}, "den9"),
             ({}, "den9.example.org"), ({"DEN": "'"}, "a"), ({"PBS_JOBID": "1.polaris-pbs-01"}, "a")]  # fmt: skip
    script, expected = text, []
    for variables, node in cases:
        script += ask(variables, [node], match="ezpz__match_user_site")
        expected.append(answer({**variables, "HOME": "/home/me"}, files(node, "", "", OWN)))
    script += "DEN=yes DEN_ROOM=attic\n" + show("ezpz__user_site_facts den") + show("ezpz__user_site_facts polaris")
    inside = recognise({"HOME": "/home/me", "DEN": "yes", "DEN_ROOM": "attic"}, read).site
    expected += [*facts_of(inside), *facts_of(sites["polaris"])]
    assert shell(script).splitlines() == expected
    assert inside.modules == (("one", "two"), ("three",))
    assert (inside.module_use, sites["polaris"].conda) == (("/opt/a+b", "/soft"), "mine")


def test_no_sites_are_functions_that_find_nothing(shell):
    script = block([], user=True) + ask({"NERSC_HOST": "perlmutter"}, ["a.b"], match="ezpz__match_user_site")
    assert shell(script + "ezpz__user_site_facts a || echo none\n") == "||\nnone\n"


@pytest.mark.slow
def test_shellcheck_finds_nothing(tmp_path):
    if not shutil.which("shellcheck"):  # `make check` needs it as well
        pytest.skip("no shellcheck on PATH")
    for user in (False, True):
        (tmp_path / "sites.sh").write_text(block(SITES.values(), user=user))
        command = ["shellcheck", "--shell=bash", "sites.sh"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")


def test_the_block_in_utils_sh_is_up_to_date():
    text = UTILS.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1, f"no place for the sites in {UTILS.name}"
    inside = text.partition(f"{BEGIN}\n")[2].partition(END)[0]
    assert inside == block(SITES.values()), "type: make sites"


def test_the_writer_replaces_only_what_is_between_the_lines(tmp_path):
    file, link = tmp_path / "utils.sh", tmp_path / "link.sh"
    file.write_bytes(f"first\r\n{BEGIN}\nold\n{END}\nlast \\ \x1b without end".encode())
    file.chmod(0o750)
    link.symlink_to(file)
    assert write(str(link), "new\n") is True
    assert file.read_bytes() == f"first\r\n{BEGIN}\nnew\n{END}\nlast \\ \x1b without end".encode()
    assert (file.stat().st_mode & 0o777, link.is_symlink()) == (0o750, True)
    assert write(str(link), "new\n") is False
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.sh", "utils.sh"]


WITHOUT_A_PLACE = {
    "none": "",
    "no end": f"{BEGIN}\n",
    "end first": f"{END}\n{BEGIN}\n",
    "twice": MARKED + MARKED,
    "inside a line": f"echo '{BEGIN}'\n{END}\n",
}


def test_a_file_without_a_place_is_refused_and_kept(subtests, tmp_path):
    for name, text in WITHOUT_A_PLACE.items():
        with subtests.test(name):
            file = tmp_path / "utils.sh"
            file.write_text(text)
            with pytest.raises(UsageError, match=r"no place for the sites: .*utils\.sh \(from the command line\)"):
                write(str(file), "new\n")
            assert file.read_text() == text


@pytest.mark.parametrize("path", ["missing.sh", "."])
def test_a_file_that_cannot_be_read_is_one_line(path, tmp_path):
    with pytest.raises(UsageError, match="cannot write the sites") as raised:
        write(str(tmp_path / path), "new\n")
    assert "\n" not in str(raised.value)


def test_make_sites_writes_the_packaged_sites_whatever_the_user_has(tmp_path):
    file = tmp_path / "utils.sh"
    file.write_text(MARKED)
    own = tmp_path / "ezpz"
    own.mkdir()
    (own / "sites.toml").write_text(OWN)
    command = [sys.executable, "-m", "ezpz.cluster.site_shell", str(file)]
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    for word in ("written", "unchanged"):
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == f"{file}: {len(SITES)} sites, {word}\n"
    assert file.read_text() == f"first\n{BEGIN}\n{block(SITES.values())}{END}\nlast\n"


def test_the_writers_own_mistakes_end_with_2(capsys, tmp_path):
    assert main([]) == main(["--help"]) == main([str(tmp_path / "missing")]) == 2
    assert capsys.readouterr().err.count("usage:") == 2
