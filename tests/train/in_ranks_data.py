"""Run by pytest inside every rank of one launch: all ranks come to the same data, or to the same error.

Not collected by itself; `test_data_in_ranks.py` launches it. FOLDER is a folder of this run.
"""

import os
import sys
import types
from itertools import chain
from pathlib import Path

import pytest
import torch
from hub import Rows, put

import ezpz
from ezpz.errors import MachineError, UsageError
from ezpz.train import (
    ImageBatches,
    SyntheticImages,
    TokenBatches,
    load_images,
    load_tokenizer,
    load_tokens,
    shard_indices,
)
from ezpz.train.data import agreement, encoded, images
from ezpz.train.data.tokenizers import Tokenizer

FOLDER = Path(os.environ["FOLDER"])


@pytest.fixture(scope="module", autouse=True)
def group():
    ezpz.setup_torch(seed=1)
    yield
    ezpz.cleanup()


def same(value):
    """Fail on all ranks when they hold different values."""
    assert ezpz.all_ranks_agree(value)
    return value


def test_one_rank_of_a_host_asks_the_hub_first(monkeypatch):
    hub = put(monkeypatch, mnist={"train": Rows(6), "test": Rows(2)})
    read = hub.load_dataset

    def noted(*words, **more):
        with (FOLDER / "images").open("a") as file:
            file.write(f"{ezpz.get_rank()} ")
        return read(*words, **more)

    hub.load_dataset = noted
    same(load_images("mnist").train[0])
    ezpz.barrier()
    assert (FOLDER / "images").read_text().split() == [str(rank) for rank in range(ezpz.get_world_size())]


def test_all_fall_back_when_no_host_gets_the_data(monkeypatch, capsys):
    put(monkeypatch)
    monkeypatch.setitem(images._SHAPES, "mnist", (10, 1, 28, 64, 32))
    found = load_images("mnist")
    assert same(found.origin).startswith("synthetic (cannot load hf:ylecun/mnist")
    same(found.train)
    assert found.train[0].shape == (64, 1, 28, 28)
    assert capsys.readouterr().out.count("data=synthetic") == (ezpz.get_rank() == 0)


def test_hosts_of_which_only_some_have_the_data_are_told(monkeypatch):
    monkeypatch.setattr(agreement, "looks_for_host", lambda: True)  # as if every rank were a host of its own
    put(monkeypatch, **({"mnist": {"train": Rows(6), "test": Rows(2)}} if ezpz.get_rank() == 0 else {}))
    with pytest.raises(MachineError, match="at hand on some hosts only") as caught:
        load_images("mnist")
    assert "ezpz fetch mnist --folder" in same(str(caught.value))


def test_a_file_that_one_rank_cannot_read_is_an_error_on_all():
    path = FOLDER / "text.txt"
    if ezpz.get_rank() == 0:
        path.write_text("some text to learn from " * 20)
    ezpz.barrier()
    last = ezpz.get_rank() == ezpz.get_world_size() - 1
    with pytest.raises(UsageError, match=r"cannot read .*absent.txt") as caught:
        load_tokens(str(FOLDER / "absent.txt" if last else path))
    same(str(caught.value))
    same(load_tokens(str(path)).train)


def test_hosts_with_different_files_are_told():
    path = FOLDER / f"own{ezpz.get_rank()}.txt"
    path.write_text("the same length, but not the same " + str(ezpz.get_rank()) * 40)
    with pytest.raises(MachineError, match="the hosts hold different data"):
        load_tokens(str(path))


def test_one_rank_asks_hugging_face_first(monkeypatch):
    order = FOLDER / "order"
    text = types.SimpleNamespace(dtype="string")

    class Rows(list):
        features = {"text": text}  # noqa: RUF012

    def load_dataset(*_, **__):
        with order.open("a") as file:
            file.write(f"{ezpz.get_rank()} ")
        return Rows([{"text": "the same on all ranks"}])

    module = types.SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", module)
    same(load_tokens("hf:name").train)
    ezpz.barrier()
    asked = order.read_text().split()
    assert asked[0] == "0"
    assert sorted(asked) == [str(rank) for rank in range(ezpz.get_world_size())]  # nobody asks twice


def test_what_is_made_is_the_same_on_all_ranks():
    for name in ("random", "shakespeare"):
        tokens = load_tokens(name, seed=5, length=4096)
        same((tokens.train, tokens.test, tokens.describe()))
    made = SyntheticImages(100, classes=10, size=28, seed=5)
    same(made(torch.arange(100)))


def test_ranks_share_the_batches_by_themselves():
    rank, world = ezpz.get_rank(), ezpz.get_world_size()
    x = torch.arange(24.0).view(24, 1, 1, 1)
    alone = ImageBatches(x, torch.arange(24), 3 * world, rank=0, world_size=1, seed=2)
    batches = ImageBatches(x, torch.arange(24), 3, seed=2)
    parts = ezpz.gather_objects(batches(4)[1].tolist())
    assert list(chain(*parts)) == alone(4)[1].tolist()
    assert batches.describe()["data_parallel"] == world
    assert list(chain(*ezpz.gather_objects(shard_indices(7).tolist()))) == list(range(7))
    mesh = ezpz.init_mesh(tp=world)  # ranks that share layers see the same data
    assert ezpz.degree(mesh, "dp") == 1
    same(TokenBatches(torch.arange(100), 5, 2)(3))
    assert rank < world


def test_a_tokenizer_is_the_same_on_all_ranks_or_the_same_error_is(tmp_path):
    path = tmp_path / "tokenizer.json"  # each rank has a folder of its own
    if ezpz.get_rank() == 0:
        path.write_text("[]")
    with pytest.raises(UsageError) as caught:
        load_tokenizer(path)
    assert "no tokenizer" in same(str(caught.value))
    assert same(load_tokenizer("bytes").size) == 258


def test_a_long_text_is_encoded_by_one_rank_and_read_by_all(monkeypatch):
    monkeypatch.setattr(encoded, "_SHORT", -1)
    calls, plain = [], load_tokenizer("bytes")
    tokenizer = Tokenizer(
        "counted", 258, 256, 257, "d", lambda text: calls.append(len(text)) or plain.encode(text), plain.decode
    )
    for _ in range(2):
        tokens = load_tokens("shakespeare", tokenizer=tokenizer, folder=FOLDER / "encoded-here")
        assert same((len(tokens.train), tokens.test[-3:].tolist())) == (1_003_855, [46, 10, 257])
    assert ezpz.gather_objects(sum(calls)) == [1_115_394] + [0] * (ezpz.get_world_size() - 1)
    with pytest.raises(UsageError) as caught:
        load_tokens(str(FOLDER / "nothing.txt"), tokenizer=load_tokenizer("bytes"))
    assert "cannot read" in same(str(caught.value))


def test_hosts_with_different_texts_have_one_error(tmp_path, monkeypatch):
    path = tmp_path / "apart.txt"
    path.write_text(f"text of rank {ezpz.get_rank()}")
    for short, told in ((1 << 22, "hosts hold different data"), (-1, "hosts hold different data")):
        monkeypatch.setattr(encoded, "_SHORT", short)
        monkeypatch.setattr(agreement, "looks_for_host", lambda: True)  # as if each were on a host of its own
        with pytest.raises(MachineError) as caught:
            load_tokens("apart.txt", folder=tmp_path, tokenizer=load_tokenizer("bytes"))
        assert told in same(str(caught.value))
