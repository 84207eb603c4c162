"""The documentation: what its pages type exists and runs, and the site works as files without a network."""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import process
from lab.checkout import ROOT
from lab.require import require

sys.path.insert(0, str(ROOT / "docs"))
import reference  # beside docs/conf.py

DOCS = ROOT / "docs"
PAGES = sorted(page for folder in ("start", "tutorials", "howto") for page in (DOCS / folder).glob("*.md"))
BLOCK = re.compile(r"^```(bash|python|toml)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|toml))\n")


def test_pages_type_only_what_exists():
    assert reference.unknown_words(DOCS) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ezpz runs --jsno", "no option --jsno"),
        ("ezpz smoke -n 2", "no verb smoke"),
        ("launch --nodes 2 python3 train.py", "no option --nodes"),
        ("launch -n 2 python3 train.py --whatever 3", None),
        ("ezpz simulate -n 64 python3 train.py --own", None),
        ("ezpz runs --state failed", None),
    ],
)
def test_what_does_not_exist_is_found(line, found, tmp_path):
    for text in (f"```bash\n{line}\n```\n", f"Type `{line}`.\n", f"    {line}\n"):
        (tmp_path / "page.md").write_text(text)
        problems = reference.unknown_words(tmp_path)
        assert [problem.rpartition(": ")[2] for problem in problems] == ([found] if found else [])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page, home, tag, tmp_path):
    """As a reader would type them, one after the other; a block that needs a machine says so after its `bash`."""
    env = process.minimal_env(home, tag, Path(sys.executable).parent)
    folder = tmp_path / "work"
    folder.mkdir()
    count = 0
    for kind, mark, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind != "bash":
            path = Path(FILE.match(text)[1].replace("~", str(home)))
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
            continue
        if mark.strip().startswith("needs "):
            continue
        expected = int(mark.rpartition(" ")[2]) if mark.strip().startswith("ends with ") else 0
        for line in text.splitlines():
            done = process.run(["bash", "-c", line], env, timeout=300, cwd=folder)
            assert done.returncode == expected, f"{line}\n{done.stdout}\n{done.stderr}"
            count += 1
    assert count > 1


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    python = ROOT / ".test" / "docs" / "bin" / "python"
    require("docs", None if python.exists() else "`tests/lab/setup docs` has not run")
    source = tmp_path_factory.mktemp("docs")
    shutil.copytree(DOCS, source / "docs", ignore=shutil.ignore_patterns("__pycache__", "reference"))
    shutil.copytree(ROOT / "examples", source / "examples")
    out = source / "site"
    command = [python, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", source / "docs", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr  # a link that leads nowhere is a warning, and a warning ends it
    return out


def script(page, what):
    """Wait for a value that scripts of the page make."""
    end = time.monotonic() + 60
    while not (found := page.ask(what)):
        assert time.monotonic() < end
        time.sleep(0.2)
    return found


@pytest.mark.lab
@pytest.mark.parametrize("width", [400, 800, 1400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_fit_a_window_and_ask_nothing_of_the_network(site, browser, width, dark):
    for name in ("index", "start/laptop", "tutorials/died", "gallery", "reference/verbs", "reliability"):
        browser.open(site / f"{name}.html", size=(width, 900), dark=dark)
        assert browser.ask("document.documentElement.scrollWidth") <= width, name
        assert {url.partition(":")[0] for url in browser.requests} <= {"file", "data"}
        background = browser.ask("getComputedStyle(document.body).backgroundColor")
        lightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
        assert (lightness < 100) == dark


@pytest.mark.lab
def test_search_works_from_files(site, browser):
    browser.open(site / "search.html")
    browser.ask("Search.performSearch('checkpoint'), 0")  # as the page does with the words of its address
    found = script(browser, "[...document.querySelectorAll('#search-results li a')].map(a => a.textContent).join('|')")
    assert "Checkpoints" in found
    assert not [url for url in browser.requests if url.startswith("http")]


@pytest.mark.lab
def test_my_script_on_two_hosts_is_at_most_three_clicks_away(site):
    """From the start page to the page that runs a script of one's own on two hosts."""
    goal, pages = "tutorials/two-hosts.html", {"index.html"}
    for clicks in range(4):
        if goal in pages:
            assert clicks <= 1
            return
        pages |= {
            str((site / page).parent.joinpath(target).resolve().relative_to(site))
            for page in pages
            for target in re.findall(r'href="([^"#:]+\.html)', (site / page).read_text(encoding="utf-8"))
        }
    pytest.fail("not found")


def test_the_page_of_exit_codes_has_those_of_every_help():
    page = reference.exit_codes()
    for verb in reference.VERBS:
        if "\nexit code:\n" in reference.help_of(verb)[0]:
            assert f"[`ezpz {verb}`]" in page
    assert "| 124 | a time limit of a run that started |" in page  # a row whose help is one line
    assert "| 0 | the curves agree within numerics, and nothing material is set differently |" in page  # and of two


def test_every_file_of_the_page_is_one_that_the_code_names():
    """And every file that a run's folder gets is on the page."""
    rows = re.findall(r"^\| `([^`]+)` \|", (DOCS / "files.md").read_text(encoding="utf-8"), re.MULTILINE)
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    for name in rows:
        last = [part for part in name.split("/") if part][-1]
        assert max(re.split(r"<\w+>", last), key=len) in code, name
    for name in ("metrics.jsonl", "metrics.columns", "hardware.jsonl", "report.html", "collectives.json"):
        assert name in rows
