"""One process: damage, no space, kills, pruning, refusals. What ranks do together is in `in_ranks_checkpoint.py`."""

import collections
import errno
import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import traceback
from dataclasses import replace
from enum import Enum
from hashlib import sha256
from pathlib import Path
from signal import Signals

import pytest

import ezpz
from ezpz import fields
from ezpz.checkpoint import Checkpoints, choose, contents, describe, find_latest, storage
from ezpz.checkpoint.manifest import Damaged, read_manifest
from ezpz.errors import EzpzError, UsageError
from ezpz.train import Loop

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint.metadata")


@pytest.fixture(scope="module", autouse=True)
def _cache_of_inductor(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:  # torch's optimizers set it
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


def build(width=8, optimizer=torch.optim.AdamW):
    model = torch.nn.Linear(width, width)
    return model, optimizer(model.parameters(), lr=0.1)


def make(folder, width=8, **more):
    model, optimizer = build(width)
    return model, Checkpoints(folder, model=model, optimizer=optimizer, **more)


def names_in(folder):
    """Return what is in a folder of checkpoints beside the lease of the run that saves there."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("lease-"))


def step(model, optimizer):
    model(torch.ones(1, model.in_features)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    """A run folder with a checkpoint of step 1 and one of step 2, to be copied."""
    folder = tmp_path_factory.mktemp("saved")
    model, optimizer = build()
    checkpoints = Checkpoints(folder, model=model, optimizer=optimizer)
    for number in (1, 2):
        step(model, optimizer)
        checkpoints.save(number)
    return folder


@pytest.fixture
def saved(saved_once, tmp_path):
    """A copy of it, in this test's own folder."""
    return shutil.copytree(saved_once, tmp_path, dirs_exist_ok=True)


def test_a_checkpoint_is_found_by_run_folder_and_by_its_own(saved):
    newest = saved / "checkpoints" / "step-00000002"
    assert find_latest(saved) == find_latest(newest.parent) == find_latest(str(saved)) == newest
    assert sorted(path.name for path in newest.iterdir()) == [".metadata", "__0_0.distcp", "checkpoint.json"]
    found = describe(saved)
    assert [each.step for each in found] == [1, 2]
    assert found[1].size == sum((newest / name).stat().st_size for name in (".metadata", "__0_0.distcp"))
    assert find_latest(saved / "nowhere") is None
    assert describe(saved / "nowhere") == []


def test_the_newest_is_the_last_saved_and_a_step_saved_again_keeps_both(saved):
    model, checkpoints = make(saved)
    assert checkpoints.load(saved / "checkpoints" / "step-00000001") == 1
    assert not bool((model.weight == 0).any())
    again = checkpoints.save(1)
    assert again.name == "step-00000001-2"
    assert find_latest(saved) == again == checkpoints.latest


def test_the_oldest_go_when_the_new_one_is_complete(tmp_path):
    _, checkpoints = make(tmp_path, keep=2)
    (tmp_path / "checkpoints" / "step-00000000").mkdir(parents=True)  # not ours
    for number in range(1, 5):
        checkpoints.save(number)
    assert names_in(checkpoints.folder) == [f"step-{number:08d}" for number in (0, 3, 4)]
    _, all_kept = make(tmp_path, keep=0)
    for number in range(5, 9):
        all_kept.save(number)
    assert [found.step for found in describe(tmp_path)] == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(("loads", "keep", "warnings"), [(False, 2, 1), (True, 2, 0), (False, 0, 0)])
def test_a_run_that_will_remove_those_of_an_earlier_one_is_warned_once(saved, capsys, loads, keep, warnings):
    _, checkpoints = make(saved, keep=keep)
    if loads:
        checkpoints.load(find_latest(saved))
    for number in (1, 2):
        checkpoints.save(number)
    told = " ".join(capsys.readouterr().out.split())
    assert told.count(f"keep={keep} removes it as more are saved") == warnings, told


def damage_shorter(folder):
    os.truncate(folder / "__0_0.distcp", 100)


def damage_missing(folder):
    (folder / "__0_0.distcp").unlink()


def damage_json(folder):
    (folder / "checkpoint.json").write_text("{{{")


def damage_schema(folder):
    said = json.loads((folder / "checkpoint.json").read_text())
    (folder / "checkpoint.json").write_text(json.dumps({**said, "schema": 7, "ezpz": "9.9"}))


def damage_entries(folder):
    (folder / "checkpoint.json").write_text(json.dumps({"schema": 1, "step": 2}))


def damage_foreign(folder):
    (folder / "checkpoint.json").unlink()


DAMAGES = {
    damage_shorter: r"__0_0.distcp has 100 bytes instead of \d+",
    damage_missing: "__0_0.distcp: No such file or directory",
    damage_json: "checkpoint.json is damaged: no JSON",
    damage_schema: "the schema of checkpoint.json is 7, written by ezpz 9.9; "
    rf"this ezpz {re.escape(ezpz.__version__)} reads schemas 1 to 2: use the",
    damage_entries: "other entries than schema 1",
    damage_foreign: "no checkpoint.json|it holds .metadata",
}


def test_a_damaged_checkpoint_is_passed_over_and_refused_by_name(subtests, saved_once, tmp_path, capsys):
    for damage, told in DAMAGES.items():
        with subtests.test(damage.__name__):
            folder = shutil.copytree(saved_once, tmp_path / damage.__name__)
            newest = folder / "checkpoints" / "step-00000002"
            damage(newest)
            assert find_latest(folder) == newest.with_name("step-00000001")
            assert "passed over" in capsys.readouterr().out
            model, checkpoints = make(folder)
            before = model.weight.clone()
            with pytest.raises(UsageError, match=told) as refused:
                checkpoints.load(newest)
            assert "\n" not in str(refused.value)
            assert torch.equal(model.weight, before)


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


def test_metadata_that_is_damaged_or_hostile_is_refused_and_runs_nothing(subtests, saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = saved / "checkpoints" / "step-00000002" / ".metadata"
    dotted = b"\x80\x04\x8c\x2etorch.distributed.checkpoint.filesystem\x94."
    said = read_manifest(path.parent)
    for content, data in {"garbage": b"\x93garbage", "evil": pickle.dumps(Evil()), "dotted": dotted}.items():
        path.write_bytes(data)
        sizes, digests = {**said.files, ".metadata": len(data)}, {**said.sha256, ".metadata": sha256(data).hexdigest()}
        (path.parent / "checkpoint.json").write_bytes(fields.replace(said, files=sizes, sha256=digests).to_json())
        model, checkpoints = make(saved)
        before = model.weight.clone()
        with subtests.test(content):
            with pytest.raises(UsageError, match="metadata is damaged"):
                checkpoints.load(path.parent)
            assert not (tmp_path / "evil").exists()
            assert torch.equal(model.weight, before)


def forge(folder, index_of, data, kind=None, name="__1_0.distcp"):
    """Let an entry of a checkpoint come from a file of its own, and the digests be those of what is there then."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    (index,) = (each for each in metadata.storage_data if each.fqn == index_of)
    place = metadata.storage_data.pop(index)
    if kind is not None:
        index = dcp.MetadataIndex(index_of)
        metadata.state_dict_metadata[index_of] = kind
    metadata.storage_data[index] = replace(place, relative_path=name, offset=0, length=len(data))
    said = read_manifest(folder)
    files, digests = dict(said.files), dict(said.sha256)
    for file, content in {".metadata": pickle.dumps(metadata), "__1_0.distcp": data}.items():
        (folder / file).write_bytes(content)
        files[file], digests[file] = len(content), sha256(content).hexdigest()
    (folder / "checkpoint.json").write_bytes(fields.replace(said, files=files, sha256=digests).to_json())


def evil():
    """Return what torch writes of an object that runs a command when it is read."""
    stream = io.BytesIO()
    torch.save(Evil(), stream)
    return stream.getvalue()


def test_forged_shards_run_nothing_and_are_refused_in_a_sentence_of_ours(saved, tmp_path, monkeypatch, subtests):
    monkeypatch.chdir(tmp_path)
    # torch unpickles bytes that are no tensor without looking at them.
    for name, kind in {"a tensor": None, "no tensor": dcp.BytesStorageMetadata()}.items():
        with subtests.test(name):
            folder = shutil.copytree(saved / "checkpoints" / "step-00000002", tmp_path / name)
            forge(folder, "model.weight", evil(), kind)
            _, checkpoints = make(tmp_path / "other")
            with pytest.raises(EzpzError) as refused:
                checkpoints.load(folder)
            assert not (tmp_path / "evil").exists()
            told = "".join(traceback.format_exception(refused.value))
            wanted = "'model.weight' is no tensor" if kind else "__1_0.distcp holds something else than tensors"
            assert wanted in str(refused.value), refused.value
            assert "\n" not in str(refused.value)
            assert "trust" not in told, told


def test_a_shard_outside_of_the_checkpoint_is_not_opened(saved, tmp_path, subtests):
    stream = io.BytesIO()
    torch.save(torch.ones(8, 8), stream)
    (tmp_path / "theirs").write_bytes(stream.getvalue())
    for number, name in enumerate(("../theirs", str(tmp_path / "theirs"), "..", "a/../__0_0.distcp")):
        with subtests.test(name):
            folder = shutil.copytree(saved / "checkpoints" / "step-00000002", tmp_path / f"{number}")
            forge(folder, "model.weight", stream.getvalue(), name=name)
            model, checkpoints = make(tmp_path / "other")
            with pytest.raises(EzpzError, match=r"metadata is damaged: it names the file '.*'"):
                checkpoints.load(folder)
            assert not bool((model.weight == 1).any())


def test_a_forged_value_among_tensors_is_refused_with_its_file(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = evil()
    monkeypatch.setattr(contents, "pack", lambda *_: torch.frombuffer(bytearray(data), dtype=torch.uint8))
    _, checkpoints = make(tmp_path / "forged")
    folder = checkpoints.save(1)
    with pytest.raises(EzpzError, match=r"__0_0.distcp: objects/rank-0 holds something else") as refused:
        checkpoints.load(folder)
    assert not (tmp_path / "evil").exists()
    assert "trust" not in "".join(traceback.format_exception(refused.value))


def test_a_state_that_cannot_be_read_back_is_refused_without_advice_to_load_it_unsafely(tmp_path):
    class State:
        def state_dict(self):
            return collections.defaultdict(int)

        def load_state_dict(self, state):
            pass

    _, checkpoints = make(tmp_path, state={"counts": State()})
    with pytest.raises(EzpzError, match=r"cannot save state 'counts': it holds a collections.defaultdict") as refused:
        checkpoints.save(1)
    assert "trust" not in "".join(traceback.format_exception(refused.value))


class OldPickler(pickle._Pickler):
    """Writes a member of an enumeration as Debian 12's Python 3.11.2 does: as a call of ``getattr``."""

    def reducer_override(self, value):
        return (getattr, (type(value), value.name)) if isinstance(value, Enum) else NotImplemented


def test_metadata_of_a_python_that_pickles_enumerations_by_name_is_read(saved):
    path = saved / "checkpoints" / "step-00000002" / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    held = io.BytesIO()
    OldPickler(held, 4).dump(metadata)
    assert b"getattr" in held.getvalue()
    path.write_bytes(held.getvalue())
    assert storage.read_metadata(path.parent) == metadata

    for owner, name in ((Signals, "SIGINT"), (torch.Size, "count")):
        path.write_bytes(pickle.dumps(Named(owner, name)))
        with pytest.raises(storage.StorageError, match="damaged"):
            storage.read_metadata(path.parent)


class Named:
    """Pickled as a call of ``getattr``."""

    def __init__(self, owner, name):
        self.owner, self.name = owner, name

    def __reduce__(self):
        return getattr, (self.owner, self.name)


def test_the_first_checkpoint_of_a_run_is_read_back(tmp_path, monkeypatch):
    """One that this Python could not load would be noticed after the job."""
    monkeypatch.setattr(storage._Unpickler, "find_class", lambda *_: (_ for _ in ()).throw(ValueError("no such class")))
    _, checkpoints = make(tmp_path)
    with pytest.raises(EzpzError, match=r"it was written and cannot be read again .*no such class"):
        checkpoints.save(1)
    assert find_latest(tmp_path) is None


def flip(path, place=None):
    """Flip the lowest bit of a byte, by default the one in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 1
    path.write_bytes(data)


def test_a_file_of_which_a_bit_is_another_is_refused_before_anything_is_changed(saved):
    newest = saved / "checkpoints" / "step-00000002"
    model, checkpoints = make(saved)
    before = model.weight.clone()
    for name in ("__0_0.distcp", ".metadata"):
        flip(newest / name)
        told = rf"{name} is damaged: .* Nothing was loaded\. `--resume auto` takes"
        with pytest.raises(UsageError, match=told) as refused:
            checkpoints.load(newest)
        assert "\n" not in str(refused.value)
        assert torch.equal(model.weight, before)
        flip(newest / name)


def test_with_digests_switched_off_damage_is_one_line_or_passes(saved):
    path = saved / "checkpoints" / "step-00000002" / "__0_0.distcp"
    (saved / "good").write_bytes(path.read_bytes())
    path.write_bytes(b"\0" * path.stat().st_size)
    _, checkpoints = make(saved, verify=False)
    with pytest.raises(EzpzError, match=r"cannot load .*: rank 0: .* The model may be changed in part") as refused:
        checkpoints.load(path.parent)
    assert "\n" not in str(refused.value)
    path.write_bytes((saved / "good").read_bytes())
    flip(path.with_name(".metadata"), -200)
    problem = ""
    try:  # a byte that torch does not look at, or one of a pickle's words: it goes by the length of paths in the file
        assert checkpoints.load(path.parent) == 2
    except EzpzError as error:
        problem = str(error)
    assert not problem or (".metadata is damaged" in problem and "\n" not in problem)


def test_digests_are_those_of_the_files_and_can_be_checked_by_hand(saved):
    newest = saved / "checkpoints" / "step-00000002"
    said = read_manifest(newest)
    assert said.sha256 == {
        name: sha256((newest / name).read_bytes()).hexdigest() for name in (".metadata", "__0_0.distcp")
    }
    assert said.files == {name: (newest / name).stat().st_size for name in said.sha256}


@pytest.mark.slow
def test_no_bit_of_the_record_of_a_checkpoint_can_be_another(saved):
    newest = saved / "checkpoints" / "step-00000002"
    said = read_manifest(newest)
    for place in range((newest / "checkpoint.json").stat().st_size):
        flip(newest / "checkpoint.json", place)
        with pytest.raises(Damaged):
            read_manifest(newest)
        flip(newest / "checkpoint.json", place)
    assert read_manifest(newest) == said


def test_a_damaged_checkpoint_is_set_aside_and_the_newest_sound_one_is_taken(saved, capsys):
    first, newest = (saved / "checkpoints" / f"step-0000000{number}" for number in (1, 2))
    flip(newest / "__0_0.distcp")
    with pytest.raises(UsageError, match=rf"__0_0.distcp is damaged: .* The nearest is {first}"):
        choose(str(newest), name="x", outdir=None)
    assert choose("auto", name="x", outdir=str(saved), verify=False).checkpoint == newest
    capsys.readouterr()
    assert choose("auto", name="x", outdir=str(saved)).checkpoint == first
    aside = newest.with_name("damaged-step-00000002")
    said = capsys.readouterr().out
    assert "[E][ezpz/checkpoint/finding" in said
    assert f"{newest} is not used: __0_0.distcp is damaged" in said
    assert f"set aside as {aside}" in said
    assert names_in(first.parent) == [aside.name, first.name]
    assert choose(str(saved), name="x", outdir=None).checkpoint == find_latest(saved) == first
    assert "is not used" not in capsys.readouterr().out
    _, checkpoints = make(saved, keep=1)
    assert checkpoints.load(first) == 1
    again = checkpoints.save(2)
    assert names_in(first.parent) == [aside.name, again.name]  # never removed
    flip(again / ".metadata")
    assert choose("auto", name="x", outdir=str(saved)).checkpoint is None
    assert (again.parent / "damaged-step-00000002-2").is_dir()


def test_a_checkpoint_that_was_chosen_is_read_once_for_its_digests(saved, monkeypatch, capsys):
    checkpoint = choose("auto", name="x", outdir=str(saved)).checkpoint
    _, checkpoints = make(saved)
    checkpoints.load(checkpoint)
    assert capsys.readouterr().out.count("2 files have the digests that were written") == 1
    flip(checkpoint / "__0_0.distcp")  # later, it is another matter
    with pytest.raises(UsageError, match="is damaged"):
        checkpoints.load(checkpoint)
    flip(checkpoint / "__0_0.distcp")
    for _ in range(2):
        checkpoints.load(checkpoint)
    assert capsys.readouterr().out.count("2 files have the digests that were written") == 2


def test_a_folder_that_cannot_be_written_is_told_and_the_sound_one_is_taken(saved, monkeypatch, capsys):
    first, newest = (saved / "checkpoints" / f"step-0000000{number}" for number in (1, 2))
    flip(newest / "__0_0.distcp")

    def refuse(self, target):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "rename", refuse)
    assert choose("auto", name="x", outdir=str(saved)).checkpoint == first
    said = capsys.readouterr().out
    assert said.count(f"{newest} is not used: ") == 1
    assert "It keeps its name, because it cannot be renamed: Permission denied" in said


def as_first_edition(folder):
    """Write ``checkpoint.json`` as schema 1 had it."""
    said = json.loads((folder / "checkpoint.json").read_text())
    said = {key: value for key, value in said.items() if "sha256" not in key}
    (folder / "checkpoint.json").write_text(json.dumps({**said, "schema": 1}) + "\n")


def test_a_checkpoint_without_digests_loads_with_a_note(saved, capsys):
    newest = saved / "checkpoints" / "step-00000002"
    said = read_manifest(newest)
    as_first_edition(newest)
    _, checkpoints = make(saved)
    assert choose("auto", name="x", outdir=str(saved)).checkpoint == newest
    assert checkpoints.load(newest) == 2
    assert capsys.readouterr().out.count("has no digests: ") == 1
    (newest / "__0_0.distcp").write_bytes(bytes(said.files["__0_0.distcp"]))
    with pytest.raises(EzpzError, match="cannot load"):
        checkpoints.load(newest)


def test_what_is_no_checkpoint_is_named(saved, tmp_path):
    _, checkpoints = make(saved)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for path, words in {"file": "it is a file", "empty": "the folder is empty", "": "it holds checkpoints"}.items():
        with pytest.raises(UsageError, match=words):
            checkpoints.load(tmp_path / path)


def test_another_model_is_refused_by_its_first_differences(saved):
    _, checkpoints = make(saved, width=9)
    with pytest.raises(UsageError, match="weight is float32 8x8 in it and float32 9x9 here; bias is float32 8 in it"):
        checkpoints.load(find_latest(saved))
    model = torch.nn.Linear(8, 8).double()
    with pytest.raises(UsageError, match="weight is float32 8x8 in it and float64 8x8 here"):
        Checkpoints(saved, model=model).load(find_latest(saved))


def test_a_schedule_groups_and_objects_must_be_in_it(saved):
    path = find_latest(saved)
    model = torch.nn.Linear(8, 8)
    half = torch.optim.AdamW([model.weight])
    with pytest.raises(UsageError, match=r"its optimizer has groups of \[2\] parameters, and this one of \[1\]"):
        Checkpoints(saved, model=model, optimizer=half).load(path)
    one = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.ConstantLR(one)
    with pytest.raises(UsageError, match="its schedule is none, and this one is ConstantLR"):
        Checkpoints(saved, model=model, optimizer=one, schedule=schedule).load(path)
    with pytest.raises(UsageError, match="it has no state 'scaler'; it has none"):
        Checkpoints(saved, model=model, optimizer=one, state={"scaler": torch.amp.GradScaler("cpu")}).load(path)
    assert Checkpoints(saved, model=model).load(path) == 2  # the weights alone


class Rows(list):
    """A history that keeps its rows."""

    def update(self, row, **_):
        self.append(row)

    def sync(self):
        pass


def in_a_loop(folder, steps, *, lr=0.1, resume=None, given=(), has_schedule=True):
    """Train by a loop; return losses, rates, and the checkpoints, to which ``given`` of its objects were given."""
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 / (1 + done)) if has_schedule else None
    own = {"optimizer": optimizer, "schedule": schedule}
    checkpoints = Checkpoints(folder, model=model, **{name: own[name] for name in given})

    def batches(position):
        return torch.randn(2, 4, generator=torch.Generator().manual_seed(position))

    rows = Rows()
    options = {"steps": steps, "batch_size": 2, "schedule": schedule, "save_every": 4, "log_every": 1000}
    Loop(
        model,
        optimizer,
        lambda net, x: net(x).pow(2).mean(),
        batches,
        checkpoints=checkpoints,
        resume=resume,
        **options,
    ).run(rows)
    return [(row["loss"], row["lr"]) for row in rows], checkpoints


@pytest.mark.parametrize("given", [(), ("optimizer",), ("schedule",), ("optimizer", "schedule")])
def test_a_loop_has_its_optimizer_and_schedule_saved_whoever_was_given_them(tmp_path, given):
    unbroken, _ = in_a_loop(tmp_path / "unbroken", 8)
    _, checkpoints = in_a_loop(tmp_path, 4, given=given)
    resumed, _ = in_a_loop(tmp_path, 8, resume=checkpoints.latest, given=given)
    assert resumed == unbroken[4:]


def test_a_checkpoint_without_what_a_loop_has_loads_with_a_line(tmp_path, capsys):
    model = torch.nn.Linear(4, 4)
    path = Checkpoints(tmp_path, model=model).save(4)
    rows, _ = in_a_loop(tmp_path, 8, resume=path)
    assert rows[0][1] == 0.1
    told = capsys.readouterr().out
    assert f"{path}: it has no optimizer: the loop's begins anew" in told
    assert f"{path}: it has no schedule: the loop's begins anew" in told
    with pytest.raises(UsageError, match="it has no optimizer, and SGD is to be loaded"):
        in_a_loop(tmp_path, 8, resume=path, given=("optimizer",))


def test_checkpoints_and_a_loop_with_two_optimizers_are_refused(tmp_path):
    model, checkpoints = make(tmp_path)
    told = r"Checkpoints saves another optimizer \(AdamW\) than the one that Loop uses \(SGD\)"
    with pytest.raises(UsageError, match=told):
        Loop(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            lambda net, x: net(x).sum(),
            lambda _: torch.ones(1, 8),
            steps=1,
            batch_size=1,
            checkpoints=checkpoints,
        )


@pytest.mark.parametrize("has_schedule", [False, True])
def test_a_learning_rate_that_a_resume_does_not_use_is_told(tmp_path, capsys, has_schedule):
    unbroken, _ = in_a_loop(tmp_path / "unbroken", 8, has_schedule=has_schedule)
    _, checkpoints = in_a_loop(tmp_path, 4, has_schedule=has_schedule)
    capsys.readouterr()
    assert in_a_loop(tmp_path, 8, resume=checkpoints.latest, has_schedule=has_schedule)[0] == unbroken[4:]
    assert "learning rate" not in capsys.readouterr().out
    again, _ = in_a_loop(tmp_path, 8, lr=0.5, resume=checkpoints.latest, has_schedule=has_schedule)
    assert again == unbroken[4:]
    assert "its learning rate counts, 0.1; 0.5, given now, is not used" in capsys.readouterr().out


def tied_model(*, tied):
    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(6, 4), "head": torch.nn.Linear(4, 6, bias=False)})
    if tied:
        model["head"].weight = model["embed"].weight
    return model


def test_weights_of_an_untied_model_are_refused_by_a_tied_one(tmp_path):
    untied = tied_model(tied=False)
    path = Checkpoints(tmp_path, model=untied).save(1)
    model = tied_model(tied=True)
    before = model["embed"].weight.clone()
    with pytest.raises(UsageError, match=r"its head.weight is no copy of embed.weight, as in this model"):
        Checkpoints(tmp_path, model=model).load(path)
    assert torch.equal(model["embed"].weight, before)
    with torch.no_grad():
        untied["head"].weight.copy_(untied["embed"].weight)
        untied["embed"].weight[0, 0] = untied["head"].weight[0, 0] = float("nan")
    again = Checkpoints(tmp_path, model=untied).save(2)
    assert Checkpoints(tmp_path, model=model).load(again) == 2
    both = Checkpoints(tmp_path, model=model).save(3)
    assert Checkpoints(tmp_path, model=untied).load(both) == 3  # each takes its copy
    assert torch.equal(untied["head"].weight.nan_to_num(), model["embed"].weight.nan_to_num())


def regrouped_run(folder, kinds, *, steps=3, load=None, lr=0.1):
    """Train with groups of these parameters; return weights, groups and rates after the steps."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    by_kind = {"all": list(model.parameters()), "matrix": [model[0].weight]}
    by_kind["rest"] = [each for each in model.parameters() if each is not model[0].weight]
    by_kind["biases"], by_kind["norm"] = [model[0].bias], list(model[1].parameters())
    groups = [{"params": by_kind[kind], "weight_decay": 0.0 if kind == "rest" else 0.5} for kind in kinds]
    optimizer = torch.optim.AdamW(groups, lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 / (1 + done))
    checkpoints = Checkpoints(folder, model=model, optimizer=optimizer, schedule=schedule)
    if load is not None:
        checkpoints.load(load)
    generator = torch.Generator().manual_seed(schedule.last_epoch)
    for _ in range(steps):
        model(torch.randn(8, 4, generator=generator)).pow(2).sum().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model, optimizer, schedule, checkpoints


@pytest.mark.parametrize(("before", "after"), [(["all"], ["matrix", "rest"]), (["matrix", "rest"], ["all"])])
def test_an_optimizer_loads_what_other_groups_have_saved(tmp_path, before, after):
    old, optimizer, _, checkpoints = regrouped_run(tmp_path, before)
    path = checkpoints.save(3, wait=True)
    new, other, schedule, _ = regrouped_run(tmp_path / "new", after, steps=0, load=path, lr=0.7)
    assert [group["lr"] for group in other.param_groups] == [0.1 / 4] * len(after)
    assert [group["weight_decay"] for group in other.param_groups] == [0.0 if kind == "rest" else 0.5 for kind in after]
    for one, another in zip(old.parameters(), new.parameters(), strict=True):
        assert torch.equal(one, another)
        assert torch.equal(optimizer.state[one]["exp_avg"], other.state[another]["exp_avg"])
        assert optimizer.state[one]["step"] == other.state[another]["step"]
    schedule.step()
    assert [group["lr"] for group in other.param_groups] == pytest.approx([0.1 / 5] * len(after))


def test_groups_with_rates_of_their_own_load_only_as_many(tmp_path):
    _, optimizer, _, checkpoints = regrouped_run(tmp_path, ["matrix", "biases", "norm"], steps=1)
    optimizer.param_groups[1]["lr"] = 0.7
    path = checkpoints.save(1, wait=True)
    with pytest.raises(UsageError, match=r"groups of \[1, 1, 2\] parameters, and this one of \[1, 3\], and its groups"):
        regrouped_run(tmp_path / "new", ["matrix", "rest"], load=path)
    assert regrouped_run(tmp_path / "new", ["biases", "matrix", "norm"], steps=0, load=path)


def test_a_parameter_that_never_had_a_gradient_has_no_state_after_loading(tmp_path):
    def build():
        model = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, Checkpoints(tmp_path, model=model, optimizer=optimizer)

    model, optimizer, checkpoints = build()
    for _ in range(2):
        model[0](torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.param_groups[0]["lr"] = 0.05
    path = checkpoints.save(2)
    other, loaded, checkpoints = build()
    checkpoints.load(path)
    assert [each.shape for each in loaded.state] == [torch.Size([3, 3]), torch.Size([3])]
    assert loaded.param_groups[0]["lr"] == 0.05
    assert torch.equal(
        loaded.state[other[0].weight]["momentum_buffer"], optimizer.state[model[0].weight]["momentum_buffer"]
    )


class Odd:
    def state_dict(self):
        return {"path": Path("/x")}

    def load_state_dict(self, state):
        raise AssertionError(state)


def test_a_state_that_could_not_be_read_again_is_refused_when_it_is_saved(tmp_path):
    _, checkpoints = make(tmp_path, state={"odd": Odd()})
    with pytest.raises(UsageError, match=r"cannot save state 'odd': a PosixPath at ..path.."):
        checkpoints.save(1)
    assert find_latest(tmp_path) is None
    assert not list(tmp_path.glob("checkpoints/*"))
    assert not list(tmp_path.glob("checkpoints/.*"))


def test_folders_in_which_nothing_can_be_saved_are_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot save in .*: .*file is a file"):
        make(tmp_path / "file" / "run")
    with pytest.raises(UsageError, match="no folder for checkpoints"):
        make(None)
    with pytest.raises(UsageError, match="keep=-1"):
        make(tmp_path, keep=-1)


def save_and_wait(checkpoints, number):
    checkpoints.save(number)
    checkpoints.wait()


def mounted(kind, target):
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", kind, "tmpfs", str(target)], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/bin/mount").exists(), reason="a small disk is mounted, as root")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, asynchronous, capfd):
    disk = tmp_path / "disk"
    disk.mkdir()
    if not mounted("size=1m", disk):
        pytest.skip("this container may not mount")
    try:
        model, optimizer = build(260)
        Checkpoints(disk, model=model, optimizer=optimizer).save(0)
        step(model, optimizer)
        checkpoints = Checkpoints(disk, model=model, optimizer=optimizer, asynchronous=asynchronous)
        with pytest.raises(EzpzError, match=r"cannot save .*step-00000001: rank 0: No space left on device") as failed:
            save_and_wait(checkpoints, 1)
        assert "\n" not in str(failed.value)
        assert names_in(checkpoints.folder) == ["step-00000000"]
        assert checkpoints.load(find_latest(disk)) == 0
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(UsageError, match=r"cannot save in .* cannot be written"):
            make(disk)
        with pytest.raises(EzpzError, match=r"cannot save .*: Read-only file system"):
            checkpoints.save(1)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_save_that_cannot_get_its_name_is_undone(tmp_path, monkeypatch):
    _, checkpoints = make(tmp_path)
    before = checkpoints.save(1)

    def rename(self, target):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        patch.setattr("ezpz.checkpoint.storage.Path.rename", rename)
        with pytest.raises(EzpzError, match="quota exceeded"):
            checkpoints.save(2)
    assert names_in(checkpoints.folder) == [before.name]


def test_an_asynchronous_save_of_one_process_holds_its_moment(tmp_path, monkeypatch):
    model, checkpoints = make(tmp_path, asynchronous=True)
    with torch.no_grad():
        model.weight.fill_(3)
    hold = threading.Event()
    write = storage.write

    def write_later(*args, **more):
        assert hold.wait(60)
        return write(*args, **more)

    monkeypatch.setattr(storage, "write", write_later)
    path = checkpoints.save(1)
    assert checkpoints.latest is None
    with torch.no_grad():
        model.weight.fill_(4)
    hold.set()
    checkpoints.wait()
    assert checkpoints.latest == path
    checkpoints.load(path)
    assert bool((model.weight == 3).all())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_kill_at_any_moment_leaves_the_last_complete_checkpoint(tmp_path, clean_env, run_cli):
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = run_cli([sys.executable, Path(__file__).with_name("save_and_be_killed.py"), tmp_path / "run", 12], env, 110)
    assert done.returncode == 0, done.stdout + done.stderr
