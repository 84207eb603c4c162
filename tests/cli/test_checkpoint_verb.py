"""`ezpz checkpoint verify`: what it says of sound, damaged, old and foreign folders, its exit codes; without torch."""

import json
import os
import shutil
import subprocess
import sys
from hashlib import sha256

import pytest

from ezpz.checkpoint.manifest import Manifest
from ezpz.cli import main

CODE = "import sys; from ezpz.cli import main; sys.exit(main(sys.argv[1:]))"


def write(run, step):
    """Make a checkpoint of two files, as far as ``checkpoint.json`` tells."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    contents = {".metadata": b"names", "__0_0.distcp": bytes(range(256)) * 20}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    manifest = Manifest(
        *(step, step, "2026-11-20T12:00:00+00:00", 1, {}, "2", "0.2.0", {}, None, "", [], False),
        files={name: len(content) for name, content in contents.items()},
        sha256={name: sha256(content).hexdigest() for name, content in contents.items()},
    )
    (folder / "checkpoint.json").write_bytes(manifest.to_json())
    return folder


@pytest.fixture
def run(tmp_path):
    for step in (100, 200):
        write(tmp_path / "run", step)
    return tmp_path / "run"


def lines_of(capsys):
    return [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]


def test_a_run_its_folder_and_one_checkpoint_are_verified(run, capsys):
    step = run / "checkpoints" / "step-00000100"
    for folder, count in ((run, 2), (run / "checkpoints", 2), (step, 1)):
        assert main(["checkpoint", "verify", str(folder)]) == 0
        lines = lines_of(capsys)
        assert [word for word, _ in lines] == ["sound"] * count
        assert lines[0][1].startswith(f"{step}: step 100, saved 2026-11-20T12:00:00+00:00, 2 files, 0.0 MB")


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "checkpoint.json"])
def test_a_flipped_bit_a_cut_and_a_lost_file_are_damage(run, name, capsys):
    path = run / "checkpoints" / "step-00000200" / name
    data = path.read_bytes()
    for damage in (data[:-3] + bytes([data[-3] ^ 4]) + data[-2:], data[:-1], None):
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
        assert main(["checkpoint", "verify", str(run)]) == 1
        lines = lines_of(capsys)
        assert [word for word, _ in lines] == ["sound", "damaged"]
        assert name in lines[1][1]
        path.write_bytes(data)


def test_every_damaged_file_is_named_and_what_was_set_aside_does_not_count_against_a_run(run, capsys):
    folder = run / "checkpoints" / "step-00000200"
    for name in (".metadata", "__0_0.distcp"):
        (folder / name).write_bytes(bytes(len((folder / name).read_bytes())))
    aside = folder.rename(folder.with_name("damaged-step-00000200"))
    assert main(["checkpoint", "verify", str(run)]) == 0
    assert [word for word, _ in lines_of(capsys)] == ["sound", "set"]
    assert main(["checkpoint", "verify", str(aside)]) == 1
    lines = lines_of(capsys)
    assert [word for word, _ in lines] == ["damaged", "damaged"]
    assert [line.split(": ")[1].split()[0] for _, line in lines] == [".metadata", "__0_0.distcp"]
    shutil.rmtree(run / "checkpoints" / "step-00000100")
    assert main(["checkpoint", "verify", str(run)]) == 1  # nothing else is left


def test_several_folders_end_with_the_code_of_the_worst(run, tmp_path, capsys):
    other = write(tmp_path / "other", 1)
    assert main(["checkpoint", "verify", str(run), str(other)]) == 0
    (other / "__0_0.distcp").unlink()
    assert main(["checkpoint", "verify", str(run), str(other)]) == 1
    assert "damaged" in capsys.readouterr().out
    assert main(["checkpoint", "verify", str(run), str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().out == ""  # a mistyped folder is told before anything is read


def test_without_digests_the_sizes_are_compared_and_a_newer_schema_is_none_of_ours(run, capsys):
    path = run / "checkpoints" / "step-00000200" / "checkpoint.json"
    said = json.loads(path.read_text())
    old = {key: value for key, value in said.items() if "sha256" not in key}
    path.write_text(json.dumps({**old, "schema": 1}))
    assert main(["checkpoint", "verify", str(path.parent)]) == 0
    assert capsys.readouterr().out.startswith("no digests ")
    path.write_text(json.dumps({**old, "schema": 3, "ezpz": "9.9"}))
    assert main(["checkpoint", "verify", str(path.parent)]) == 2
    assert "written by ezpz 9.9; this ezpz" in capsys.readouterr().out


def test_what_holds_no_checkpoint_is_told_with_code_2(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for name, words in {"": "it holds none", "file": "it is a file", "nowhere": "no folder here"}.items():
        assert main(["checkpoint", "verify", str(tmp_path / name)]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert words in said.err
        assert "; expected " in said.err
    assert main(["checkpoint", "check", str(tmp_path)]) == 2
    assert "expected one of verify. Did you mean" not in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, as root")
def test_what_this_user_may_not_read_is_no_damage(run, capsys):
    step = run / "checkpoints" / "step-00000200"
    ours = [folder for folder in run.parents if folder.name.startswith(("test_", "pytest-", "popen-"))]
    for folder in (run, *ours):
        folder.chmod(0o755)

    def verify(folder):
        main(["checkpoint", "verify", str(run)])  # what is imported late, this user may import
        capsys.readouterr()
        os.seteuid(65534)
        try:
            code = main(["checkpoint", "verify", str(folder)])
        finally:
            os.seteuid(0)
        return code, "".join(capsys.readouterr())

    assert verify(run)[0] == 0
    (step / "__0_0.distcp").chmod(0)
    code, said = verify(run)
    assert code == 2
    assert f"unreadable {step}: __0_0.distcp: Permission denied" in said
    step.chmod(0)
    code, said = verify(run)
    assert code == 2
    assert f"unreadable {step}: checkpoint.json: Permission denied" in said
    assert verify(step)[0] == 2
    step.parent.chmod(0)
    code, said = verify(run)
    assert code == 2
    assert "Permission denied; expected a run folder" in said


def test_it_needs_no_torch_and_outlives_a_reader_that_leaves(run, tmp_path):
    for name in ("torch", "numpy"):
        (tmp_path / "none").mkdir(exist_ok=True)
        (tmp_path / "none" / f"{name}.py").write_text("raise SystemExit('imported')\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "none"), *sys.path])}
    words = [sys.executable, "-c", CODE, "checkpoint", "verify", str(run)]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 0
