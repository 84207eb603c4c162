import json
import sys

import pytest

from ezpz.cluster.site import PACKAGED, load

SITES = [sys.executable, "-m", "ezpz", "sites"]
PACKAGED_SITES = load({}, lambda _: None)
OWN = """
[site.den]
scheduler = "none"
device = "cuda"
devices_per_host = 2
notes = ["Ask before you switch it off."]
[site.den.environment]
NCCL_P2P_DISABLE = "1"
[site.den.recognise]
variables = { DEN = ["yes"] }
[site.polaris]
conda = "mine"
"""


@pytest.fixture
def own(home):
    """The user's own table."""
    file = home / ".config" / "ezpz" / "sites.toml"
    file.parent.mkdir(parents=True)
    file.write_text(OWN)
    return file


def test_the_list_has_a_line_per_site_and_fits_a_terminal(run_cli):
    done = run_cli(SITES)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in lines[1 : len(PACKAGED_SITES) + 1]] == list(PACKAGED_SITES)
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    row = next(line for line in lines if line.split()[:1] == ["aurora"])
    assert row.split() == ["aurora", "ALCF", "pbs", "pals", "12", "xpu", "2026-08", "docs"]
    assert "2 or 3 cuda" in done.stdout
    assert "This machine: none of these (from no site's variables or host names)" in lines


@pytest.mark.slow
def test_this_machine_is_marked(run_cli, clean_env, own):
    for variables, name in (({"TACC_SYSTEM": "ls6"}, "lonestar6"), ({"EZPZ_SITE": "den"}, "den")):
        done = run_cli(SITES, {**clean_env, **variables})
        marked = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("* ")]
        assert marked == [name]
        assert f"This machine: {name} (from " in done.stdout


def test_a_contradiction_is_told_after_the_list(run_cli, clean_env):
    done = run_cli(SITES, {**clean_env, "NERSC_HOST": "perlmutter", "TACC_SYSTEM": "ls6"})
    assert done.returncode == 125
    assert "lonestar6" in done.stdout
    assert done.stderr.startswith("ezpz: two sites: perlmutter (from NERSC_HOST=perlmutter) and lonestar6")
    assert len(done.stderr.splitlines()) == 1


def test_one_site_is_told_whole_in_80_columns(in_process, subtests):
    for name in PACKAGED_SITES:
        with subtests.test(str(name)):
            done = in_process(["sites", name])
            assert done.returncode == 0, done.stderr
            site = PACKAGED_SITES[name]
            assert max(map(len, done.stdout.splitlines())) <= 80
            joined = "".join(done.stdout.split())
            facts = (site.source, site.date, site.confidence, f"from {PACKAGED}:")
            for text in (*facts, *site.notes, *site.recognise.domains):
                assert "".join(text.split()) in joined
            for variable, value in site.environment.items():
                assert f"environment.{variable}={''.join(value.split())}" in joined
            for variant in site.variants:
                assert f"variant{''.join(variant.name.split())},when" in joined


def test_facts_say_which_are_derived_and_which_file_gave_them(run_cli, own):
    done = run_cli([*SITES, "polaris"])
    text = done.stdout
    assert "cpu_bind.4 = list:24-31,56-63:16-23,48-55:8-15,40-47:0-7,32-39 (derived)" in text
    assert "device_cpus = 24-31,56-63; 16-23,48-55; 8-15,40-47; 0-7,32-39\n" in text
    joined = "".join(text.split())  # a long path is wrapped
    packaged, mine = joined.index(f"from{PACKAGED}:"), joined.index("conda=mine")
    assert packaged < joined.index("modules=conda") < joined.index(".config/ezpz/sites.toml") < mine


@pytest.mark.slow
def test_json_is_complete(run_cli, clean_env, own):
    told = json.loads(run_cli([*SITES, "--json"], {**clean_env, "DEN": "yes"}).stdout)
    assert (told["here"], told["origin"]) == ("den", "DEN=yes")
    assert [site["name"] for site in told["sites"]] == [*PACKAGED_SITES, "den"]
    one = json.loads(run_cli([*SITES, "den", "--json"]).stdout)
    assert one == told["sites"][-1]
    assert (one["devices_per_host"], one["environment"]) == (2, {"NCCL_P2P_DISABLE": "1"})
    assert one["origins"]["device"] == str(own)
    assert json.loads(run_cli([*SITES, "--json"], {**clean_env, "HOME": "/nowhere"}).stdout)["here"] is None


def test_sh_prints_the_users_own_sites_for_the_shell(run_cli, own):
    done = run_cli([*SITES, "--sh"])
    assert (done.returncode, done.stderr) == (0, "")
    assert f"# The sites of {own}, printed by `ezpz sites --sh`" in done.stdout
    script = done.stdout + (
        "site='' site_from='' site_clash=''\nDEN=yes\nezpz__match_user_site variables\necho $site\n"
        "ezpz__user_site_facts polaris\necho $site_conda\nezpz__user_site_facts crux || echo $?\n"
    )
    assert run_cli(["bash", "-euc", script]).stdout == "den\nmine\n1\n"


WRONG = [
    (["polari"], "unknown site: 'polari' (from the command line); expected one of polaris"),
    (["zzz"], "expected one of aurora, polaris, "),
    (["--sh", "polaris"], "--sh takes no other word"),
    (["--what"], "unknown option --what"),
]


def test_a_wrong_word_ends_with_2(in_process, subtests):
    for args, words in WRONG:
        with subtests.test(str(args)):
            done = in_process(["sites", *args])
            assert (done.returncode, done.stdout) == (2, "")
            assert words in done.stderr


@pytest.mark.slow
def test_a_bad_table_is_one_line(run_cli, own):
    own.write_text("[site.den]\nschedular = 1\n")
    for args in ([], ["polaris"], ["--sh"], ["--json"]):
        done = run_cli([*SITES, *args])
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
        assert f"unknown key: schedular = 1 (from {own}, [site.den]); expected scheduler." in done.stderr


def test_help_explains_the_verb(run_cli):
    done = run_cli([*SITES, "--help"])
    assert (done.returncode, "usage: ezpz sites" in done.stdout) == (0, True)
