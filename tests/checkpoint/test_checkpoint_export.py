"""`ezpz checkpoint export`: the weights of a checkpoint for plain torch and Hugging Face; what is refused."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from ezpz.checkpoint import Checkpoints, export, safetensors_files
from ezpz.cli import main
from ezpz.errors import EzpzError, UsageError

torch = pytest.importorskip("torch")

CONFIG = {"model_type": "llama", "hidden_size": 4}


class Mixed(torch.nn.Module):
    """Several number formats, a number without shape, an empty tensor, tied weights, and a state beside tensors."""

    def __init__(self, **more):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 4, dtype=torch.bfloat16)
        self.norm, self.last = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4, bias=False)
        self.last.weight = self.second.weight
        self.register_buffer("empty", torch.empty(0, 2))
        self.register_buffer("mask", torch.tensor([True, False]))
        for name, value in more.items():
            self.register_buffer(name, value)


class WithState(Mixed):
    def get_extra_state(self):
        return {"seen": 7, "table": torch.arange(6.0).reshape(2, 3).t()}

    def set_extra_state(self, state):
        self.seen = state["seen"]


def save(folder, model, step=3):
    return Checkpoints(folder, model=model).save(step)


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    run, model = tmp_path_factory.mktemp("saved") / "run", Mixed()
    save(run, model, 2)
    model.config = SimpleNamespace(model_type="llama", to_dict=lambda: dict(CONFIG))
    save(run, model)
    return run, model.state_dict()


@pytest.fixture
def saved(saved_once, tmp_path):
    """A copy, to be spoilt."""
    return shutil.copytree(saved_once[0], tmp_path / "run"), saved_once[1]


def are_equal(found, state):
    assert list(found) == list(state)
    for name, value in state.items():
        assert (found[name].dtype, found[name].stride()) == (value.dtype, value.stride()), name
        assert torch.equal(found[name], value), name


def test_the_newest_checkpoint_of_a_run_becomes_what_plain_torch_has(saved, tmp_path, capsys):
    run, state = saved
    assert main(["checkpoint", "export", str(run), "--to", str(tmp_path / "new" / "weights.pt")]) == 0
    assert capsys.readouterr().out.startswith(f"exported   {tmp_path / 'new' / 'weights.pt'}: step 3, ")
    path = tmp_path / "new" / "weights.pt"
    for mapped in (False, True):
        are_equal(torch.load(path, weights_only=True, mmap=mapped), state)
    assert [each.name for each in path.parent.iterdir()] == ["weights.pt"]
    Mixed().load_state_dict(torch.load(path, weights_only=True))


def read(folder):
    import struct

    data = folder.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    kinds = {word: name for name, (word, _) in safetensors_files.WRITTEN.items()}
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + each for each in entry["data_offsets"])
        flat = torch.frombuffer(bytearray(data[begin:end]) or bytearray(1), dtype=torch.uint8)[: end - begin]
        tensors[name] = flat.view(getattr(torch, kinds[entry["dtype"]])).reshape(entry["shape"])
    return tensors


def test_safetensors_and_a_folder_hold_the_same_and_the_folder_a_config(saved, tmp_path, capsys):
    run, state = saved
    (path, folder) = (tmp_path / "weights.safetensors", tmp_path / "llama-3.1")
    for target in (path, folder):
        assert main(["checkpoint", "export", str(run), "--to", str(target)]) == 0
    assert capsys.readouterr().err == ""
    are_equal(read(path), state)
    are_equal(read(folder / "model.safetensors"), state)
    config = json.loads((folder / "config.json").read_text())
    assert config == {**CONFIG, "architectures": ["Mixed"]}
    older = run / "checkpoints" / "step-00000002"
    assert main(["checkpoint", "export", str(older), "--to", str(tmp_path / "old")]) == 0
    assert "no config.json" in capsys.readouterr().err
    assert [each.name for each in (tmp_path / "old").iterdir()] == ["model.safetensors"]


def test_what_a_model_keeps_beside_tensors_is_in_a_file_of_torch_alone(tmp_path):
    model = WithState()
    path = save(tmp_path / "run", model)
    export(path, tmp_path / "weights.pt")
    found, state = torch.load(tmp_path / "weights.pt", weights_only=True), model.state_dict()
    assert list(found) == list(state)
    assert found["_extra_state"]["seen"] == 7
    assert torch.equal(found["_extra_state"]["table"], state["_extra_state"]["table"])
    done = export(path, tmp_path / "weights.safetensors")
    assert done.remarks == ["safetensors hold tensors alone: _extra_state is left out"]


def test_number_formats_that_torch_has_no_class_for_come_back(tmp_path):
    eighth, odd = torch.ones(3).to(torch.float8_e4m3fn), torch.ones(2, dtype=torch.complex64)
    path = save(tmp_path / "run", Mixed(eighth=eighth, odd=odd))
    export(path, tmp_path / "weights.pt")
    found = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert torch.equal(found["eighth"].view(torch.uint8), eighth.view(torch.uint8))
    assert torch.equal(found["odd"], odd)
    with pytest.raises(UsageError, match=r"cannot export odd as safetensors: .*complex64.*Export to FILE.pt"):
        export(path, tmp_path / "weights.safetensors")


def test_nothing_is_overwritten_without_the_word_for_it(saved, tmp_path, capsys):
    run, state = saved
    mine, folder, foreign = tmp_path / "weights.pt", tmp_path / "out", tmp_path / "work"
    mine.write_text("mine")
    export(run / "checkpoints" / "step-00000002", folder)
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("mine")
    for target in (mine, folder, foreign):
        assert main(["checkpoint", "export", str(run), "--to", str(target)]) == 2
        assert f"{target} (from --to) is there already; expected a new one. Name another, or add --overwrite" in (
            capsys.readouterr().err
        )
    assert mine.read_text() == "mine"
    for target in (mine, folder):
        assert main(["checkpoint", "export", str(run), "--to", str(target), "--overwrite"]) == 0
    are_equal(torch.load(mine, weights_only=True), state)
    assert (folder / "config.json").exists()
    assert main(["checkpoint", "export", str(run), "--to", str(foreign), "--overwrite"]) == 2
    assert "the folder holds thesis.tex, which no export has written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no --to (from the command line); expected one run"),
        (["--to", "weights.bin"], "no format of that ending is known; expected FILE.safetensors, FILE.pt, or a folder"),
        (["--to", "Makefile"], "it is a file, of no known ending"),
        (["--to", "folder.pt"], "it is a folder; expected the name of a file"),
        (["more", "--to", "weights.pt"], "2 runs (from the command line)"),
    ],
)
def test_places_that_mean_nothing_are_refused(saved, tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Makefile").write_text("")
    (tmp_path / "folder.pt").mkdir()
    assert main(["checkpoint", "export", str(saved[0]), *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "lose"])
def test_a_damaged_file_is_one_error_that_names_it(saved, tmp_path, capsys, name, damage):
    path = saved[0] / "checkpoints" / "step-00000003" / name
    data = path.read_bytes()
    path.unlink()
    if damage != "lose":
        path.write_bytes(data[:-1] if damage == "cut" else data[:-90] + bytes([data[-90] ^ 4]) + data[-89:])
    for target in ("weights.pt", "weights.safetensors", "out"):
        code = main(["checkpoint", "export", str(saved[0]), "--to", str(tmp_path / target)])
        said = capsys.readouterr()
        if (name, damage) == ("checkpoint.json", "lose"):  # it is no checkpoint any more: the one before is the newest
            continue
        assert code == 2
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert name in said.err
        assert sorted(each.name for each in tmp_path.iterdir()) == ["run"]


def test_damage_that_no_digest_tells_is_one_error_as_well(saved, tmp_path, monkeypatch):
    """As of checkpoints that were saved without digests."""
    path = saved[0] / "checkpoints" / "step-00000003"
    data = (path / "__0_0.distcp").read_bytes()
    monkeypatch.setattr("ezpz.checkpoint.exporting.objections", lambda *_: [])
    for spoilt in (bytes(len(data)), data[: len(data) // 2] + bytes(len(data) - len(data) // 2)):
        (path / "__0_0.distcp").write_bytes(spoilt)
        for target in ("weights.pt", "weights.safetensors", "out"):
            with pytest.raises(UsageError, match=r"cannot export .*__0_0.distcp .*expected a complete checkpoint"):
                export(path, tmp_path / target)
            assert sorted(each.name for each in tmp_path.iterdir()) == ["run"]


def test_a_place_that_cannot_be_written_is_one_error(saved, tmp_path, monkeypatch):
    path = saved[0] / "checkpoints" / "step-00000003"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for target in ("weights.pt", "weights.safetensors", "out"):
        with pytest.raises(EzpzError, match=r"No space left on device; expected"):
            export(path, tmp_path / target)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run"]


def test_a_full_disk_is_left_without_a_trace(saved, tmp_path, monkeypatch):
    """What a file still holds in memory fails once more when it is closed."""
    opened = Path.open
    full = lambda self, mode="r", *more: opened(Path("/dev/full") if mode == "wb" else self, mode, *more)  # noqa: E731
    monkeypatch.setattr(Path, "open", full)
    for target in ("weights.pt", "weights.safetensors", "out"):
        with pytest.raises(EzpzError, match=r"No space left on device; expected"):
            export(saved[0] / "checkpoints" / "step-00000003", tmp_path / target)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run"]
