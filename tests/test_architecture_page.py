"""Hold docs/architecture.md to the code: what it names exists, and its table of packages is the enforced one."""

import re
import subprocess
from pathlib import Path

from test_architecture import LEAVES, MAY_IMPORT

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "ezpz"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def section(title):
    """Return the text below a heading, up to the next one of its level."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text):
    """Return the cells of the tables in a text, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def words(cell):
    """Return what is in code type."""
    return re.findall(r"`([^`]+)`", cell)


def test_every_path_exists():
    paths = sorted(set(re.findall(r"(?<![\w/.])[\w./-]+/[\w.-]+\.(?:py|sh|toml|md|json)\b", PAGE)))
    assert len(paths) > 90
    found = {path: any(list(base.glob(path.replace("NAME", "*"))) for base in (ROOT, SRC)) for path in paths}
    assert [path for path in paths if not found[path]] == []


def test_every_class_and_constant_is_defined_in_the_code():
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(SRC.rglob("*.py")))
    classes = set(re.findall(r"^class (\w+)", text, re.MULTILINE))
    constants = set(re.findall(r"^([A-Z_]+)(?:: [^=]+)? = ", text, re.MULTILINE))
    functions = set(re.findall(r"^def (\w+)", text, re.MULTILINE))
    flow = section("From the environment to the run folder")
    named = {"Allocation", "Survey", "LaunchPlan", "Ranks"}
    assert {line.split()[0] for line in flow.splitlines() if re.match(r"[A-Z]\w+ {9,}|[A-Z]\w+$", line)} == named
    for name in named | {word.partition(".")[0] for word in re.findall(r"\.py \(([\w.]+)\)", flow)}:
        assert name in classes | functions, name
    for name in re.findall(r"`([A-Z_]{4,})`", section("Where do I add …")):
        assert name in constants, name


def test_every_function_of_the_shell_is_defined():
    names = re.findall(r"ezpz__\w+", PAGE)
    line = [
        "bash",
        "-c",
        'source "$0" && for one; do declare -F "$one" || exit; done',
        SRC / "bin" / "utils.sh",
        *names,
    ]
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout.split() == names


def test_every_file_of_a_launch_is_named():
    files = {
        f"{package}/{path.name}"
        for package in ("launch/run", "launch/host")
        for path in (SRC / package).glob("*.py")
        if path.name != "__init__.py"
    }
    assert {word for cells in rows(section("The processes of a launch")) for word in words(cells[0])} >= files


def test_the_table_of_packages_is_the_enforced_one():
    table = {}
    for package, _, may_import in rows(section("Packages")):
        names = set(words(may_import)) | (LEAVES if "the leaves" in may_import else set())
        assert names or may_import == "nothing", package
        table[words(package)[0]] = names
    assert table == MAY_IMPORT
    assert set(list(table)[: len(LEAVES)]) == LEAVES


def test_the_variables_of_the_connections_are_those_of_the_code():
    text = "\n".join(path.read_text(encoding="utf-8") for path in (SRC / "launch").rglob("*.py"))
    strings = set(re.findall(r"""["'](EZPZ_[A-Z]+)["']""", text))
    assert set(re.findall(r"EZPZ_[A-Z]+", PAGE)) <= strings


def test_the_files_to_touch_are_complete_rows():
    for what, touched, page in rows(section("Where do I add …")):
        assert words(touched), what
        assert [(ROOT / name).exists() for name in words(page)] == [True], what


def test_no_line_of_text_is_too_long():
    assert [line for line in PAGE.splitlines() if len(line) > 120 and not line.startswith("|")] == []
