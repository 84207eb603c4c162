"""What earlier editions wrote stays readable: runs open, plot, report, compare and resume (`data/first-edition`, …)."""

import json
import os
import shutil
import sys
import tarfile
import time
from pathlib import Path

import pytest

import ezpz
from ezpz.checkpoint import find_latest
from ezpz.errors import TrackError
from ezpz.track.run_reader import open_run

RECORDED = Path(__file__).parent / "data" / "first-edition"
RUNS = sorted(path.name.removesuffix(".tar.xz") for path in RECORDED.glob("*.tar.xz"))
ROWS = {"fsdp": 1, "fsdp_tp": 6, "gpt": 6, "llm": 6, "minimal": 20, "test_dist": 20, "vit": 6}
SAVED = {"fsdp": 11, "fsdp_tp": 6, "gpt": 6, "llm": 6, "vit": 6}
SECOND = RECORDED.with_name("second-edition")
RUNS_OF_SECOND = sorted(
    path.name.removesuffix(".tar.xz") for path in SECOND.glob("*.tar.xz") if "launches" not in path.name
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with all recorded runs, unpacked."""
    folder = tmp_path_factory.mktemp("first-edition")
    for name in RUNS:
        with tarfile.open(RECORDED / f"{name}.tar.xz") as archive:
            archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """The same of the second edition, and the records of its launches in the folder ``ezpz``."""
    folder = tmp_path_factory.mktemp("second-edition")
    for path in SECOND.glob("*.tar.xz"):
        with tarfile.open(path) as archive:
            archive.extractall(folder / "ezpz" if "launches" in path.name else folder)
    return folder


def test_every_trainer_is_recorded_in_a_megabyte():
    trainers = {path.stem for path in Path(ezpz.__file__).parent.joinpath("examples").glob("*.py")}
    trainers = {name for name in trainers if "_" not in name or name == "fsdp_tp"} | {"test_dist"}
    assert set(RUNS) == set(ROWS) == trainers - {""}
    for edition in (RECORDED, SECOND):
        assert sum(path.stat().st_size for path in edition.iterdir()) < 1_000_000


def test_a_run_opens_with_all_its_rows_and_its_checkpoint_is_complete(subtests, recorded, second):
    of_second = [(second, name) for name in RUNS_OF_SECOND]
    for edition, name in [*((recorded, name) for name in RUNS), *of_second]:
        with subtests.test(f"{edition.name} {name}"):
            run = open_run(edition / name)
            assert (run.name, run.state, run.facts["schema"]) == (name, "finished", 1)
            assert len(run.table.steps) == ROWS[name]
            assert run.facts["versions"]["ezpz"] == "0.1.0"
            assert all(len(cells.values) for cells in run.table.cells.values())
            if name in SAVED:
                assert find_latest(edition / name).name == f"step-{SAVED[name]:08}"


@pytest.mark.slow
def test_its_dataset_opens(subtests, recorded, second):
    xarray = pytest.importorskip("xarray")
    for edition, name in [*((recorded, name) for name in RUNS), *((second, name) for name in RUNS_OF_SECOND)]:
        with (
            subtests.test(f"{edition.name} {name}"),
            xarray.open_dataset(edition / name / f"{name}.h5", engine="h5netcdf") as dataset,
        ):
            assert dataset.sizes["draw"] == ROWS[name]
            assert dataset.attrs["ezpz_schema"] == 1


# Many verbs in one process, which loads matplotlib once.
VERBS = """
import contextlib, io, json, sys
from ezpz.cli import main
for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = main(words)
    print(json.dumps([words[:2], code, bool(said.getvalue())]))
"""


@pytest.mark.slow
def test_every_run_is_plotted_reported_and_compared(recorded, run_cli, tmp_path):
    lines = []
    for name in RUNS:
        folder, page, table = str(recorded / name), str(tmp_path / f"{name}.html"), str(tmp_path / f"{name}.csv")
        lines += [["plot", folder], ["report", folder, "-o", page], ["compare", folder, folder]]
        lines += [["export", folder, "--csv", "-o", table]]
    done = run_cli([sys.executable, "-c", VERBS, json.dumps(lines)], timeout=120)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told == [[line[:2], 0, True] for line in lines], done.stderr
    for name in RUNS:
        assert name in (tmp_path / f"{name}.html").read_text(encoding="utf-8")


def test_the_runs_are_listed(recorded, run_cli):
    done = run_cli([sys.executable, "-m", "ezpz", "runs", recorded, "--json"])
    assert done.returncode == 0, done.stderr
    assert {row["name"] for row in json.loads(done.stdout)} >= set(RUNS)


def test_the_records_of_launches_tell_the_same(second, run_cli, clean_env):
    """Of the second edition: what ended them, in `ezpz why`, and the list of `ezpz runs`."""
    env = {**clean_env, "XDG_STATE_HOME": str(second)}
    launches = {}
    for path in second.glob("ezpz/launches/*"):
        facts = json.loads((path / "run.json").read_text())
        launches.setdefault((facts["state"], facts["exit_code"]), []).append(path)
    assert {end: len(paths) for end, paths in launches.items()} == {
        ("finished", 0): 7,
        ("stopped", 124): 1,
        ("failed", 1): 1,
    }
    told = {}
    for end in (("stopped", 124), ("failed", 1)):
        done = run_cli([sys.executable, "-m", "ezpz", "why", launches[end][0]], env)
        assert done.returncode == 0, done.stderr
        told[end] = done.stdout
    assert "hang.py:" in told["stopped", 124]
    assert "the data has an odd length" in told["failed", 1]
    done = run_cli([sys.executable, "-m", "ezpz", "startup", launches["finished", 0][0]], env)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_every_trainer_resumes_its_recorded_run(recorded, second, run_cli, clean_env, tmp_path):
    pytest.importorskip("torch")
    here = tmp_path / "runs"
    here.mkdir()
    of_second = sorted(SAVED.keys() & set(RUNS_OF_SECOND))
    for name in SAVED:
        (here / name).symlink_to(recorded / name)
    for name in of_second:
        (here / f"second-{name}").symlink_to(second / name)
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    env["TORCH_DEVICE"] = "cpu"
    script = Path(__file__).with_name("resume_editions.py")
    done = run_cli([sys.executable, script, here], env, 200)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = json.loads((here / "steps.json").read_text())
    assert steps == {
        "fsdp": [2],  # a row is an epoch here, and the recorded run ended after the first
        "fsdp_tp": [6, 7],
        "gpt": [6, 7],
        "llm": [7, 8],  # counted from 1, as the settings' trainer prints them
        "vit": [6, 7],
        **{f"second-{name}": [6, 7] for name in of_second},
    }


@pytest.mark.slow
def test_a_newer_schema_is_refused_with_a_sentence(subtests, recorded, run_cli, tmp_path):
    folder = tmp_path / "newer"
    folder.mkdir()
    facts = json.loads((recorded / "minimal" / "run.json").read_text())
    facts.update(schema=2, versions={**facts["versions"], "ezpz": "9.1"})
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "metrics.jsonl").write_bytes((recorded / "minimal" / "metrics.jsonl").read_bytes())
    sentence = (
        f"cannot read {folder}/run.json: its schema is 2, written by ezpz 9.1; this ezpz {ezpz.__version__} reads"
    )
    with pytest.raises(TrackError) as caught:
        open_run(folder)
    assert sentence in str(caught.value)
    for verb, words in {"plot": [folder], "report": [folder], "compare": [folder, folder], "runs": [tmp_path]}.items():
        done = run_cli([sys.executable, "-m", "ezpz", verb, *words], cwd=os.fspath(tmp_path))
        with subtests.test(verb):
            assert done.returncode != 0
            assert sentence in done.stderr
            assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_newer_record_of_a_launch_is_refused_and_others_are_listed(subtests, recorded, second, run_cli, clean_env):
    """Of a launch and of its run: who reads one says so in a sentence, who lists many leaves it out, or goes on."""
    home = second.with_name("newer-launch")
    shutil.copytree(second / "ezpz" / "launches", home / "ezpz" / "launches")
    folders = sorted((home / "ezpz" / "launches").iterdir())
    ran = next(each for each in folders[::-1] if json.loads((each / "run.json").read_text())["exit_code"] == 0)
    newer = json.loads((ran / "run.json").read_text())
    (ran / "run.json").write_text(json.dumps({**newer, "schema": 2, "started": time.time()}))  # the newest of all
    sentence = f"cannot read {ran}/run.json: its schema is 2, written by a newer ezpz; this ezpz {ezpz.__version__}"
    run = home / "run"
    run.mkdir()
    facts = json.loads((recorded / "minimal" / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "launch": {"EZPZ_LAUNCH_ID": newer["launch_id"]}}))
    of_run = home / "newer-run"
    of_run.mkdir()
    (of_run / "run.json").write_text(json.dumps({**facts, "schema": 3, "versions": {"ezpz": "9.1"}}))
    env = {**clean_env, "XDG_STATE_HOME": str(home)}
    for verb in ("why", "startup", "logs"):
        words = {"the newest": [], "its record": [ran], "its run": [run], "a newer run": [of_run]}
        for which, word in words.items():
            done = run_cli([sys.executable, "-m", "ezpz", verb, *word], env)
            with subtests.test(f"{verb} {which}"):
                assert done.returncode == 1
                said = (
                    f"cannot read {of_run}/run.json: its schema is 3, written by ezpz 9.1"
                    if word == [of_run]
                    else sentence
                )
                assert said in done.stderr
                assert done.stderr.count("\n") == 1
    for words in (["startup", "--last", "20"], ["status"], ["kill"], ["runs", recorded]):
        done = run_cli([sys.executable, "-m", "ezpz", *words], env)
        with subtests.test(words[0]):
            assert done.returncode == 0, done.stderr
            assert (sentence in done.stderr) == (words[0] == "startup")


@pytest.mark.parametrize("part", ["run.json", "metrics.jsonl"])
def test_a_newer_folder_is_not_written_on(recorded, tmp_path, part):
    folder = tmp_path / "newer"
    folder.mkdir()
    for name in ("run.json", "metrics.jsonl"):
        text = (recorded / "minimal" / name).read_text()
        newer = {"run.json": ('"schema": 1', '"schema": 2'), "metrics.jsonl": ('"v":1', '"v":2')}[name]
        (folder / name).write_text(text.replace(*newer) if name == part else text)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(TrackError):
        ezpz.History(name="minimal", outdir=folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name in before} == before
