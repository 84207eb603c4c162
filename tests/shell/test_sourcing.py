"""Sourcing prints nothing, starts nothing and leaves behind only the documented names."""

import re
import shutil
import subprocess

import pytest
from shells import UTILS, older_names

# Each state is a section of text; what differs between two snapshots is what sourcing left behind.
SNAPSHOT = {
    "bash": """
        snapshot() {
          echo '== functions'; declare -F | sed 's/^declare -f[a-z]* //'
          vary='_|BASH_.*|FUNCNAME|PIPESTATUS|LINENO|RANDOM|SRANDOM|SECONDS|EPOCH.*|BASHPID|OPTIND'
          echo '== variables'; (set -o posix; set) | sed 's/=.*//' | grep -vE "^($vary)\\$"
          echo '== exported'; export -p
          echo '== options'; set +o; shopt
          echo '== traps'; trap
          echo '== aliases'; alias
          echo '== place'; printf '%s\\n' "$PWD" "$OLDPWD" "$PATH" "$IFS" "$-" "$#" "$@"; umask
        }""",
    "zsh": """
        snapshot() {
          echo '== functions'; print -l ${(ok)functions}
          vary='_|LINENO|RANDOM|SECONDS|EPOCH.*|TTYIDLE|status|pipestatus|\\?|!|\\$|funcstack|functrace'
          vary="$vary|funcfiletrace|funcsourcetrace|zsh_eval_context|ZSH_EVAL_CONTEXT|KEYBOARD_HACK"
          echo '== variables'; print -l ${(ok)parameters} | grep -vE "^($vary)\\$"
          echo '== exported'; export -p
          echo '== options'; set -o; setopt
          echo '== traps'; trap
          echo '== aliases'; alias
          echo '== place'; printf '%s\\n' "$PWD" "$OLDPWD" "$PATH" "$IFS" "$-" "$#" "$@"; umask
        }""",
}
DOCUMENTED = re.compile(rf"ezpz_\w+|launch|EZPZ_\w+|{'|'.join(older_names()[1])}")  # and names of older job scripts


def left_behind(shell, how, options=""):
    """Return the names that sourcing added, after checking that nothing else changed."""
    script = f"""
        alias ll='ls -l' cd='cd -P' cat='cat -A' printf='printf x' mkdir='mkdir -v'
        trap 'true' USR1
        {options}
        set -- 'first parameter' 'second'
        {"zmodload zsh/parameter" if shell.name == "zsh" else ""}
        OLDPWD=/
        {SNAPSHOT[shell.name]}
        snapshot >../before 2>&1 || :
        {how}
        snapshot >../after 2>&1 || :
    """
    result = shell.bare(script)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    before, after = ((shell.cwd.parent / name).read_text().splitlines() for name in ("before", "after"))
    assert len(before) > 100
    lost = [line for line in before if line not in after]
    assert lost == []
    return sorted(set(after) - set(before))


def test_only_documented_names_are_left_behind(shell, subtests):
    for options in ("", "set -euo pipefail"):
        for how in ("source '{}'", "source <(command cat '{}')"):
            with subtests.test(how, options=options):
                added = left_behind(shell, how.format(UTILS), options)
                assert {"launch", "ezpz_setup_env", "ezpz_setup_python", "ezpz_setup_job", "EZPZ_UTILS"} <= set(added)
                assert [name for name in added if not DOCUMENTED.fullmatch(name)] == []


def test_sourcing_twice_changes_nothing_more(shell):
    script = f"source '{UTILS}'\n{SNAPSHOT[shell.name]}\nsnapshot >../one\nsource '{UTILS}'\nsnapshot >../two"
    assert shell.bare(script).returncode == 0
    assert (shell.cwd.parent / "one").read_text() == (shell.cwd.parent / "two").read_text()


def test_sourcing_starts_no_program(shell):
    result = shell.bare(f"PATH=/nowhere\nsource '{UTILS}' && echo \"loaded $EZPZ_UTILS\"")
    assert (result.stdout, result.stderr) == (f"loaded {UTILS}\n", "")


@pytest.mark.parametrize("name", ["dash", "ksh", "ksh93", "mksh"])
def test_a_shell_that_is_neither_bash_nor_zsh_is_told_so_in_one_line(tmp_path, name):
    """`/bin/sh` of Debian and Ubuntu, where a job script begins with ``#!/bin/sh``; ksh of weather centres."""
    if not shutil.which(name):
        pytest.skip(f"{name} is not on PATH")
    (tmp_path / "job").write_text(f". '{UTILS}'\necho \"code $?\"\n")
    done = subprocess.run([name, "job"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "code 2\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("[ezpz] error: utils.sh was sourced by a shell that is neither bash nor zsh (job);")
    assert "#!/bin/bash" in line


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not on PATH")
def test_fish_shows_the_line_that_says_what_to_type(tmp_path):
    """It reads the file as a whole and shows the first line that it does not understand."""
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source '{UTILS}'"], capture_output=True, text=True, check=False
    )
    assert "in fish, type bash first" in done.stderr


def test_the_path_is_known_only_where_there_is_a_file(shell):
    for how in ("source <(cat '{}')", "cat '{}' >copy.sh; source ./copy.sh"):
        result = shell.bare(f'EZPZ_UTILS=stale\n{how.format(UTILS)}\necho "[$EZPZ_UTILS]"')
        assert result.stdout in ("[]\n", f"[{shell.cwd}/copy.sh]\n", f"[{shell.cwd}/./copy.sh]\n")
        assert ("copy" in result.stdout) == ("copy" in how)


@pytest.mark.slow
def test_a_cut_download_defines_nothing(shell):
    lines = UTILS.read_text().splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith("{"))
    end = max(i for i, line in enumerate(lines) if line.startswith("}"))
    cuts = [*range(start + 1, end, 29), end]
    for cut in cuts:
        (shell.cwd / f"cut-{cut}").write_text("".join(lines[:cut]))
    checks = "\n".join(
        f"( source ./cut-{cut} ) >/dev/null 2>&1; source ./cut-{cut} 2>/dev/null; "
        f"if typeset -f launch ezpz_setup_env ezpz__log >/dev/null; then echo 'defined by {cut}'; fi"
        for cut in cuts
    )
    result = shell.bare(f"{checks}\necho done")
    assert result.stdout == "done\n"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not on PATH")
def test_shellcheck_has_nothing_to_say():
    result = subprocess.run(["shellcheck", "--shell=bash", str(UTILS)], capture_output=True, text=True, check=False)
    assert result.stdout == ""


def test_lines_fit_and_functions_are_one_job_each():
    text = UTILS.read_text()
    assert [line for line in text.splitlines() if len(line) > 120] == []
    functions = re.findall(r"^function (\S+) \{(?:\n(.*?)^\}| [^\n]*\}$)", text, re.MULTILINE | re.DOTALL)
    names = [name for name, _ in functions]
    assert {"ezpz__site_facts", "ezpz__log", "launch"} <= set(names)
    assert [name for name in names if not DOCUMENTED.fullmatch(name)] == []
    made_from_a_table = {"ezpz__older", "ezpz__match_site", "ezpz__site_facts"}
    assert [name for name, body in functions if body.count("\n") > 40 and name not in made_from_a_table] == []


def test_only_syntax_of_both_shells_is_used():
    """What bash 4.2 and zsh do not share is kept out: arrays, [[ ]], case changes, name references."""
    code = "\n".join(line for line in UTILS.read_text().splitlines() if not line.lstrip().startswith("#"))
    assert not re.search(r"\[\[ |declare -A|local -[nA-]|mapfile|BASH_REMATCH|\$\{\w+(,,|\^\^)", code)
