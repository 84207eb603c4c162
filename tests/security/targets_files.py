"""Files that users, clusters and other tools write: each reader ends with success or an error of one line."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import pickle
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fuzz import target

from ezpz.checkpoint.manifest import Unusable, read_manifest
from ezpz.checkpoint.safetensors_files import UnreadableError, find_entries, read_tensor
from ezpz.cluster import site
from ezpz.errors import EzpzError
from ezpz.launch.hostfile import read_hostfile
from ezpz.track import dataset
from ezpz.train import make_settings_parser, parse, setting
from ezpz.train.data.text import read_text, read_token_file
from ezpz.view.foreign.opening import open_foreign
from ezpz.view.report.page import build_page
from ezpz.watch.collectives.last_collectives import MalformedDump, read_dump

RECORDED = Path(__file__).parents[1] / "view" / "recorded"


def _ended(read, *refusals):
    """Return what reading came to; what ezpz raises says what in one line."""
    try:
        return type(read()).__name__
    except (EzpzError, *refusals) as error:
        kind, text = type(error).__name__, str(error)
    assert text, kind
    assert "\n" not in text, text
    return kind


def of_a_file(name):
    """Make a function of a path a function of bytes, which lie in a file of this name in a folder of their own."""

    def decorate(function):
        @functools.wraps(function)
        def feed(data):
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
                path = Path(folder) / name
                path.write_bytes(data)
                return function(path)

        return feed

    return decorate


HOSTS = (b"n01:2\nn02 slots=4 # two\n\nn02\n", b"\xef\xbb\xbfhost.example.org:1\r\n", b"10.0.0.1\n10.0.0.1\n")


@target(inputs=500, seeds=HOSTS, words=[b"slots=", b":", b"max-slots=", b"#"])
@of_a_file("hosts")
def host_file(path):
    return _ended(lambda: read_hostfile(str(path)))


SITES = b"""[site.polaris]
cores = 32
reserved_cpus = [0, 52]
notes = ["one"]

[site.mine]
scheduler = "slurm"
devices_per_host = 4
modules = [["a", "b"]]
recognise = { variables = { CLUSTER = ["mine"] }, hosts = ["n[0-9]*"] }
"""


@target(inputs=400, seeds=[SITES], words=[b"[site.", b"scheduler", b" = ", b"{", b"[["])
def sites_file(data):
    text = data.decode(errors="replace")
    environ = {"XDG_CONFIG_HOME": "/c", "XDG_CACHE_HOME": "/nowhere"}
    return _ended(lambda: site.load(environ, lambda path: text if path.startswith("/c/") else None))


@dataclass(frozen=True)
class Job:
    """Where the settings come from."""

    config_file: str = setting("", "TOML file", in_files=False)


@dataclass(frozen=True)
class Training:
    """What a trainer is asked for."""

    steps: int = setting(10, "steps", least=1)
    lr: float = setting(1e-3, "highest learning rate", above=0)
    compile: bool = setting(False, "compile the blocks")
    dtype: str = setting("fp32", "number format", choices=("fp32", "bf16"))
    parts: tuple[str, ...] = setting((), "names of parts")
    path: str | None = setting(None, "folder of the data")


@dataclass(frozen=True)
class Config:
    """All of it."""

    job: Job
    training: Training


SETTINGS = b"""[training]
steps = 100
lr = 0.1
compile = true
dtype = "bf16"
parts = ["a", "b"]
path = '''x
y'''
"""


@target(inputs=200, seeds=[SETTINGS], words=[b"[training]", b'"""', b"steps", b" = ", b"{", b"[["])
@of_a_file("a.toml")
def settings_file(path):
    files = ("--job.config_file", "--config")
    parser = make_settings_parser("ezpz.examples.x", "Train x.", Config, files=files, name="x")
    return _ended(lambda: parse(parser, ["--config", str(path)]))


@target(inputs=300, seeds=[struct.pack("<8H", *range(8))])
@of_a_file("train.bin")
def token_file(path):
    return _ended(lambda: read_token_file(path, 7)), _ended(lambda: read_token_file(path, None))


@target(inputs=300, seeds=["Ein Text, ünï.\n".encode()])
@of_a_file("a.txt")
def text_file(path):
    return _ended(lambda: read_text(path))


def _foreign(path):
    def read():
        run = open_foreign(path)
        dataset.write_dataset(path.with_name("a.h5"), run.rows, {"name": run.name}, run.windows)
        return build_page(run)

    return _ended(read)


@target(inputs=50, seeds=[next((RECORDED / "wandb").rglob("*.wandb")).read_bytes()])
@of_a_file("run-abc123.wandb")
def wandb_file(path):
    return _foreign(path)


@target(inputs=80, seeds=[path.read_bytes() for path in sorted(RECORDED.rglob("events.out.*"))])
@of_a_file("events.out.tfevents.1795314299.vm.18639.0")
def tensorboard_file(path):
    return _foreign(path)


@target(inputs=100, seeds=[b"step=1 loss=0.5 lr=1e-3\nnoise\niter: 2, loss: nan\n"], words=[b"step=", b"loss=", b"="])
@of_a_file("train.log")
def plain_log(path):
    return _foreign(path)


MANIFEST = {  # of schema 1, which has no digests, so that damage comes through
    "schema": 1,
    "step": 100,
    "number": 7,
    "saved": "2026-11-20T16:20:01+01:00",
    "world_size": 4,
    "mesh": {"dp_shard": 2},
    "torch": "2.13.0",
    "ezpz": "0.1.0",
    "model": {"norm.weight": ["float32", [64]]},
    "optimizer": None,
    "schedule": "LambdaLR",
    "state": ["scaler"],
    "own_objects": False,
    "files": {".metadata": 5120, "__0_0.distcp": 83456},
}


@target(inputs=400, seeds=[json.dumps(MANIFEST).encode()], words=[b'"schema"', b'"files"'])
@of_a_file("checkpoint.json")
def checkpoint_manifest(path):
    return _ended(lambda: read_manifest(path.parent), Unusable)


def _safetensors():
    head = json.dumps(
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {"format": "pt"}}
    ).encode()
    return len(head).to_bytes(8, "little") + head + struct.pack("<2f", 1.0, 2.0)


@target(inputs=60, seeds=[_safetensors()], words=[b'"shape"', b'"data_offsets"', b'"dtype"', b"BF16"])
@of_a_file("model.safetensors")
def safetensors_file(path):
    def read():
        return [read_tensor(entry) for entry in find_entries(path.parent).values() if not entry.problem]

    return _ended(read, UnreadableError)


@target(inputs=300, seeds=[b'{"metadata": {}, "weight_map": {"a": "model.safetensors"}}'])
@of_a_file("model.safetensors.index.json")
def safetensors_index(path):
    (path.parent / "model.safetensors").write_bytes(_safetensors())
    return _ended(lambda: find_entries(path.parent), UnreadableError, OSError)


_DUMP = {
    "version": "2.10",
    "pg_status": {"0": {"last_enqueued_collective": 8, "last_started_collective": -1}},
    "entries": [{"process_group": ("0", "default_pg"), "collective_seq_id": 300, "time_created_ns": 1 << 60,
                 "is_p2p": False, "retired": True, "state": None, "x": 70000, "y": 1.5, "input_sizes": [[4], []]}],
}  # fmt: skip


@target(
    inputs=4000, seeds=[pickle.dumps(_DUMP, 2)], words=[b"\x8a", b"r\xff\xff\xff\xff", b"cos\nsystem\n", b"R", b"("]
)
def dump_of_collectives(data):
    return _ended(lambda: read_dump(data), MalformedDump)
