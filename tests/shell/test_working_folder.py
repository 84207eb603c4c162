"""Nothing of ours imports from the working folder, and a rank imports from it what it would without us."""

import shutil
import sys
from pathlib import Path

import pytest

from ezpz.interpreter import module_line
from lab import traps


@pytest.mark.slow
def test_no_function_of_the_shell_imports_from_it(shell, real_python, subtests):
    sprung = traps.lay(shell.cwd)
    shell.program("python3", f'exec {real_python} "$@"')
    for line in (
        *("launch -n 2 true", "launch", "launch --dry-run true", "launch --help"),
        *("ezpz_setup_job", "ezpz_get_job_env"),
        'if [ -n "${ZSH_VERSION:-}" ]; then setopt shwordsplit; fi; ezpz_setup_job && ${DIST_LAUNCH} true',
    ):
        with subtests.test(line):
            done = shell(line)
            assert (done.returncode, sprung()) == (2 * (line == "launch"), []), done.stderr


def test_an_interpreter_is_asked_about_itself_without_it(shell):
    sprung = traps.lay(shell.cwd)
    like_its_callers = 'if [ -n "${ZSH_VERSION:-}" ]; then emulate sh; fi'
    done = shell(f'{like_its_callers}\nvenv=/nowhere; ezpz__probe {sys.executable} && echo "$p_version"')
    assert (done.stdout.strip(), sprung()) == (sys.version.split()[0], []), done.stderr


@pytest.mark.slow
def test_the_verbs_import_nothing_from_it(run_cli, tmp_path):
    sprung = traps.lay(tmp_path)
    ezpz = shutil.which("ezpz", path=Path(sys.executable).parent)
    for words in (["where"], ["launch", "-n", "2", "true"], ["runs"], ["kill"], ["sites"]):
        done = run_cli([ezpz, *words])
        assert (done.returncode, sprung()) == (2 if words == ["runs"] else 0, []), done.stderr  # there are no runs


@pytest.mark.slow
@pytest.mark.parametrize("version", [(3, 10), (3, 11)])
def test_a_line_of_ours_imports_nothing_from_it_and_hands_on_its_words(run_cli, clean_env, tmp_path, version):
    sprung = traps.lay(tmp_path)
    line = module_line("ezpz.launch", version=version)
    assert ("-P" in line) == (version == (3, 11))
    done = run_cli([*line, "-n", "1", "--", "printf", "%s|", "a b", "$c"])
    assert (done.returncode, done.stdout, sprung()) == (0, "a b|$c|", []), done.stderr
    dist_launch = {**clean_env, "DIST_LAUNCH": " ".join([*line, "-n", "2", "--"])}
    done = run_cli(["bash", "-c", "${DIST_LAUNCH} echo x"], dist_launch)
    assert (done.returncode, done.stdout, sprung()) == (0, "x\nx\n", []), done.stderr


@pytest.mark.slow
def test_typed_by_hand_it_imports_nothing_from_it_after_its_first_line(run_cli, tmp_path):
    sprung = traps.lay(tmp_path)
    (tmp_path / "types.py").unlink()  # runpy imports these before anything of ours, and `python3 -m pip` has no choice
    (tmp_path / "re.py").unlink()
    for module, *words in (["ezpz.launch", "-n", "2", "true"], ["ezpz.cluster", "--sh"], ["ezpz", "where"]):
        done = run_cli([sys.executable, "-m", module, *words])
        assert (done.returncode, sprung()) == (0, []), done.stderr


@pytest.mark.slow
def test_a_rank_imports_as_it_does_without_us(run_cli, tmp_path):
    """A script's own folder comes first, and no switch or variable of ours changes what a rank finds."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "json.py").write_text("mine = True\n")
    script = "import sys, os, json; print([json.mine, sys.path, sys.flags, os.getenv('PYTHONSAFEPATH')])"
    (project / "script.py").write_text(script)
    line = module_line("ezpz.launch")
    for words in (["project/script.py"], ["-c", "import sys; print(sys.path, sys.flags)"]):
        alone = run_cli([sys.executable, *words])
        launched = run_cli([*line, "-n", "2", sys.executable, *words])
        assert alone.returncode == 0, alone.stderr
        assert launched.stdout == 2 * alone.stdout, launched.stderr
