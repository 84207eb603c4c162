"""The documentation: what its pages type exists and runs, and the site works as files without a network."""

import re
import sys
from itertools import product
from pathlib import Path

import pytest

from lab import environment_names, process
from lab.checkout import ROOT, copy_checkout
from lab.require import require

sys.path.insert(0, str(ROOT / "docs"))
# Both lie beside docs/conf.py.
import check_pages
import record_fields
import reference

DOCS = ROOT / "docs"
PAGES = check_pages.pages_of(ROOT)
BLOCK = re.compile(r"^```(bash|python|toml)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = re.compile(r"^```bash(?: ends with \d+)?\n", re.MULTILINE)
TYPED = [page for page in PAGES if RUN.search(page.read_text(encoding="utf-8"))]
NEEDS = {  # what a block of commands may need that a test has not
    *("a GPU", "GPUs", "16 CPUs", "a cluster", "two hosts", "an MPI", "a job"),
    *("the network", "some minutes", "a run of yours", "a script of yours"),
}
FILE = re.compile(r"# (\S+\.(?:py|toml))\n")


def test_pages_type_only_what_exists():
    assert check_pages.unknown_words(PAGES) == []


# Each way in which a page can name what does not exist; the last word of the message says what.
WRONG = {
    "an option in a block": ("```bash\nezpz runs --jsno\n```", "no option --jsno"),
    "a verb in a block": ("```bash\nezpz smoke -n 2\n```", "no verb smoke"),
    "a verb with a dash": ("Type `ezpz run-all`.", "no verb run-all"),
    "a verb at the end of a question": ("Why not (`ezpz smoke`)?", "no verb smoke"),
    "after a line that goes on": ("```bash\nlaunch -n 2 \\\n  --nodes 2 python3 train.py\n```", "no option --nodes"),
    "after && and ;": ("```bash\ncd x && ezpz where; ezpz runs --jsno\n```", "no option --jsno"),
    "after a pipe": ("```bash\necho x|ezpz export --cvs\n```", "no option --cvs"),
    "after a variable": ("```sh\nNAME=1 launch --nodes 2 true\n```", "no option --nodes"),
    "within $(...)": ('```bash\neval "$(ezpz shel)"\n```', "no verb shel"),
    "after a prompt in a terminal": ("```text\n$ ezpz why --jobs\nrank 1\n```", "no option --jobs"),
    "in an indented block": ("Text:\n\n    ezpz runs --jsno\n", "no option --jsno"),
    "in a block of a list": ("- so:\n\n  ```bash\n  ezpz runs --jsno\n  ```\n", "no option --jsno"),
    "in a sentence": ("Type `ezpz runs --jsno`.", "no option --jsno"),
    "in code over two lines": ("Type `ezpz runs\n--jsno` now.", "no option --jsno"),
    "an option alone": ("`--idle-timeuot 10m` ends it.", "no option --idle-timeuot"),
    "an option alone in a table": ("| `--idle-timeuot` | ends it |", "no option --idle-timeuot"),
    "a short option alone": ("`-Y` is yes.", "no option -Y"),
    "an option of ezpz itself": ("`ezpz --versoin`", "no option --versoin"),
    "launch as a module": ("`python3 -m ezpz.launch --nodes 2 true`", "no option --nodes"),
    "a verb of the module": ("`python3 -m ezpz smoke`", "no verb smoke"),
    "a module": ("`python3 -m ezpz.examples.fdsp`", "no module ezpz.examples.fdsp"),
    "an option of a trainer": ("`launch python3 -m ezpz.examples.fsdp --presett debug`", "no option --presett"),
    "a setting of a trainer": (
        "`launch python3 -m ezpz.examples.gpt --train.max_itres 3`",
        "no option --train.max_itres",
    ),
    "a verb under launch": ("`launch -n 2 ezpz smoke`", "no verb smoke"),
    "a function of the shell": ("`source utils.sh && ezpz_setup_envs`", "no function ezpz_setup_envs"),
    "a target of make": ("```bash\nmake tset\n```", "no target tset"),
    "a variable of make": ("`make soak COUNT=3`", "no variable COUNT"),
    "an option in a variable of make": (
        '`make bench ARGS="--markdwon --rounds 9"`',
        "no option --markdwon of make bench",
    ),
}


def test_what_does_not_exist_is_found(subtests, tmp_path):
    page = tmp_path / "page.md"
    for where, (text, found) in WRONG.items():
        page.write_text(f"# Title\n\n{text}\n")
        with subtests.test(where):
            assert [line.rpartition("`: ")[2] for line in check_pages.unknown_words([page], tmp_path)] == [found]


def test_what_exists_is_not_found(tmp_path):
    page = tmp_path / "page.md"
    lines = [
        "`launch -n 2 python3 train.py --whatever 3`, `ezpz simulate -n 64 python3 train.py --own`",
        "`ezpz runs --state failed`, `ezpz help runs`, `ezpz VERB --help`, `ezpz --version`, `ezpz.History`",
        "`launch [options] [--] COMMAND [ARG ...]`, `-n 2`, `--train.max_iters 3`, `--max-iters`",
        '`python3 -m torchtitan.train --module llama3`, `make bench ARGS="--markdown"`, `make test K=meeting`',
        "```bash\nlaunch env -u RANK python3 train.py --own # --jsno of a comment\n```",
        "```text\nezpz: unknown option --jsno\n```",
    ]
    page.write_text("\n\n".join(lines))
    assert check_pages.unknown_words([page], tmp_path) == []


def test_options_of_other_programs_are_named_only_while_a_page_names_them():
    ours = [page for page in PAGES if page.name not in check_pages.FOREIGN_PAGES]
    code = {
        code.partition(" ")[0].partition("=")[0] for page in ours for code in check_pages.inline_code(page.read_text())
    }
    for program, options in check_pages.FOREIGN_OPTIONS.items():
        assert set(options.split()) <= code, program


def unmarked(text):
    """Return the lines of a page at which commands stand that no test runs and that say nothing of what they need."""
    found = []
    for block in check_pages.FENCE.finditer(text):
        kind, mark = block[3], block[4].strip()
        first = next((line.strip() for line in block[5].splitlines() if line.strip()), "")
        if kind in check_pages.SHELLS:
            known = not mark or re.fullmatch(r"ends with \d+", mark) or mark.removeprefix("needs ") in NEEDS
            wrong = kind != "bash" or not known or bool(block[1])  # one that is indented is not run
        else:
            types = re.match(r"(?:launch|ezpz|python3|make|source)\b(?! +\[)(?![:.])(?!  )", first)
            wrong = kind in {"", "text"} and bool(types)
        if wrong:
            found.append(text.count("\n", 0, block.start()) + 1)
    rest = check_pages.FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    indented = re.finditer(r"^ {4,}(?:\$ )?(?:launch|ezpz|python3|make|source|export|pip) .*$", rest, re.MULTILINE)
    return found + [rest.count("\n", 0, line.start()) + 1 for line in indented]


def test_every_command_of_a_page_is_run_or_says_what_it_needs():
    found = {str(page.relative_to(ROOT)): unmarked(page.read_text(encoding="utf-8")) for page in PAGES}
    assert {page: lines for page, lines in found.items() if lines} == {}


def test_commands_without_a_mark_are_found(subtests):
    for text, lines in [
        ("```bash\nezpz where\n```\n", []),
        ("```bash needs a cluster\nezpz where\n```\n", []),
        ("```bash ends with 124\nezpz where\n```\n", []),
        ("```text\n$ ezpz where\nscheduler   none\n```\n", []),
        ("```text\nlaunch [options] [--] COMMAND\n```\n", []),
        ("```text\nezpz: 2 ranks on n01\n```\n", []),
        ("```bash needs luck\nezpz where\n```\n", [1]),
        ("```sh\nezpz where\n```\n", [1]),
        ("one\n\n```\nezpz where\n```\n", [3]),
        ("one\n\n    launch -n 2 true\n", [3]),
        ("- one:\n\n  ```bash\n  ezpz where\n  ```\n", [3]),
    ]:
        with subtests.test(text):
            assert unmarked(text) == lines


REFUSED = re.findall(r"^\|[^|]*\|[^|]*\| (\w[^|]*) \|$", (DOCS / "style.md").read_text(encoding="utf-8"), re.MULTILINE)[
    1:
]
OF_OTHERS = re.compile(r"node file|a node with", re.IGNORECASE)  # names that other programs gave


def refused_words(text):
    """Return the words of a page's sentences that docs/style.md refuses."""
    prose = check_pages.FENCE.sub("", re.sub(r"^(?: {4}).*$", "", text, flags=re.MULTILINE))
    prose = OF_OTHERS.sub("", re.sub(r"`[^`]*`|\]\([^)]*\)", "", prose))
    words = "|".join(word for row in REFUSED for word in row.split(", "))
    return re.findall(rf"\b(?:{words})(?:s|es|d)?\b", prose, re.IGNORECASE)


def test_pages_use_the_words_of_the_style():
    pages = [page for page in PAGES if page.name not in {"style.md", *check_pages.FOREIGN_PAGES}]
    found = {str(page.relative_to(ROOT)): refused_words(page.read_text(encoding="utf-8")) for page in pages}
    assert {page: words for page, words in found.items() if words} == {}


def test_refused_words_are_found():
    assert refused_words("Two nodes, simply. `node` and [x](node.md) and the node file\n\n```text\nnode\n```\n") == [
        "nodes",
        "simply",
    ]


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", TYPED, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page, home, tag, tmp_path):
    """As a reader would type them, one after the other; a block that needs a machine says so after its `bash`."""
    env = process.minimal_env(home, tag, Path(sys.executable).parent)
    folder = tmp_path / "work"
    folder.mkdir()
    count = 0
    for kind, mark, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind != "bash":
            name = FILE.match(text)
            if not name:
                continue  # a part of a file
            path = Path(name[1].replace("~", str(home)))
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
            continue
        if mark.strip().startswith("needs "):
            continue
        expected = int(mark.rpartition(" ")[2]) if mark.strip().startswith("ends with ") else 0
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            done = process.run(["bash", "-c", line], env, timeout=300, cwd=folder)
            assert done.returncode == expected, f"{line}\n{done.stdout}\n{done.stderr}"
            count += 1
    assert count


def build(source, out):
    """Build the site of a checkout as `make docs` does."""
    python = ROOT / ".test" / "docs" / "bin" / "python"
    require("docs", None if python.exists() else "`tests/lab/setup docs` has not run")
    command = [python, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", source / "docs", out]
    return process.run(command, timeout=280)


@pytest.mark.lab
def test_a_page_that_names_what_does_not_exist_ends_the_build(tmp_path):
    source = copy_checkout(tmp_path / "ezpz", without=())
    with (source / "docs" / "logging.md").open("a") as page:
        page.write("\nType `ezpz runs --jsno`.\n")
    done = build(source, tmp_path / "site")
    assert done.returncode != 0
    assert "docs/logging.md: `ezpz runs --jsno`: no option --jsno" in done.stderr
    assert not (tmp_path / "site" / "index.html").exists()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    source = copy_checkout(tmp_path_factory.mktemp("docs") / "ezpz", without=())
    out = source / "site"
    done = build(source, out)
    assert done.returncode == 0, done.stderr  # a link that leads nowhere is a warning, and a warning ends it
    return out


def script(page, what):
    """Wait for a value that scripts of the page make."""
    return process.wait_until(lambda: page.ask(what), 60, what)


@pytest.mark.lab
def test_pages_fit_a_window_and_ask_nothing_of_the_network(site, browser):
    for name in ("index", "start/laptop", "tutorials/died", "gallery", "reference/verbs", "reliability", "variables"):
        browser.open(site / f"{name}.html")
        for width, dark in product([400, 800, 1400], [False, True]):
            browser.show(size=(width, 900), dark=dark)
            assert browser.ask("document.documentElement.scrollWidth") <= width, (name, width, dark)
            background = browser.ask("getComputedStyle(document.body).backgroundColor")
            lightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
            assert (lightness < 100) == dark, (name, width)
        assert {url.partition(":")[0] for url in browser.requests} <= {"file", "data"}


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
    for code in ("2", "124", "125", "126", "127", "128+n"):
        assert f"\n| {code} | " in page.partition("| verb |")[0]
    for verb in reference.VERBS:
        if "\nexit code:\n" in reference.help_of(verb):
            assert f"[`ezpz {verb}`]" in page
    assert "| 124 | a time limit of a run that started |" in page  # a row whose help is one line
    assert "| 0 | the curves agree within numerics, and nothing material is set differently |" in page  # and of two


@pytest.mark.slow
def test_the_page_of_variables_has_every_one_that_the_code_names():
    """And no other, and each once."""
    rows = re.findall(r"^\| (`[^|]*)\|", (DOCS / "variables.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([A-Z0-9_]+)`", row)]
    assert sorted(name for name in set(named) if named.count(name) > 1) == []
    assert sorted(environment_names.ours() | environment_names.foreign()) == sorted(named)


def test_a_variable_is_found_where_the_code_asks_for_it(tmp_path):
    code = tmp_path / "code.py"
    code.write_text(
        'import os\nos.environ.get("ONE")\nenviron["TWO"]\n"THREE" in self.plan.environ\n'
        'NAMES = ("SLURM_FOUR", "NODE_FAIL")\nother.get("FIVE")\n'
    )
    assert environment_names.foreign_in(code) == {"ONE", "TWO", "THREE", "SLURM_FOUR"}


def test_every_file_of_the_page_is_one_that_the_code_names():
    """And every file that a run's folder gets is on the page."""
    text = (DOCS / "files.md").read_text(encoding="utf-8").partition(record_fields.BEGIN)[0]
    rows = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    for name in rows:
        last = [part for part in name.split("/") if part][-1]
        assert max(re.split(r"<\w+>", last), key=len) in code, name
    for name in ("metrics.jsonl", "metrics.columns", "hardware.jsonl", "report.html", "collectives.json"):
        assert name in rows


def test_the_tables_of_fields_are_those_of_the_classes():
    text = record_fields.PAGE.read_text(encoding="utf-8")
    assert text == record_fields.page(text), "run `python docs/record_fields.py`"
