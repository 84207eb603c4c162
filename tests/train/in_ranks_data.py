"""Run by pytest inside every rank of one launch: all ranks come to the same data, or to the same error.

Not collected by itself; `test_data_in_ranks.py` launches it. MIRROR is the address of its mirror, FOLDER a folder of
this run.
"""

import os
import sys
import types
from itertools import chain
from pathlib import Path

import pytest
import torch
from mirror import dataset, tiny_mnist

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
from ezpz.train.data import download, encoded, images, together
from ezpz.train.data.tokenizers import Tokenizer

FOLDER = Path(os.environ["FOLDER"])


@pytest.fixture(scope="module", autouse=True)
def group():
    ezpz.setup_torch(seed=1)
    yield
    ezpz.cleanup()


@pytest.fixture
def mnist(monkeypatch):
    """`mnist("absent", "good")`: where the tiny MNIST is to be had."""

    def mnist(*kinds):
        mirrors = (f"{os.environ['MIRROR']}/{kind}/" for kind in kinds)
        monkeypatch.setitem(download.CATALOG, "mnist", dataset("mnist", tiny_mnist(), *mirrors))

    monkeypatch.setitem(images._SHAPES, "mnist", (10, 1, 28, 64, 32))
    return mnist


def same(value):
    """Fail on all ranks when they hold different values."""
    assert ezpz.all_ranks_agree(value)
    return value


def test_one_rank_downloads_and_all_have_the_data(mnist):
    mnist("slow")  # it counts what it is asked for
    found = load_images("mnist", folder=FOLDER / "good")
    assert same(found.origin) == f"downloaded from {os.environ['MIRROR']}/slow/"
    assert same(found.train[0]).flatten().tolist() == list(range(24))
    assert same(load_images("mnist", folder=FOLDER / "good").origin) == f"cache {FOLDER / 'good' / 'mnist'}"


def test_all_fall_back_when_the_download_fails(mnist, capsys):
    mnist("absent", "cut")
    found = load_images("mnist", folder=FOLDER / "bad")
    assert same(found.origin).startswith("synthetic (cannot download train-images")
    same(found.train)
    assert found.train[0].shape == (64, 1, 28, 28)
    assert capsys.readouterr().out.count("data=synthetic") == (ezpz.get_rank() == 0)


def test_a_corrupt_file_is_the_same_error_on_all(mnist):
    mnist("good")
    path = FOLDER / "corrupt" / "mnist" / "t10k-labels-idx1-ubyte.gz"
    if ezpz.get_rank() == 0:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"cut")
    ezpz.barrier()
    with pytest.raises(UsageError, match="corrupt or cut data") as caught:
        load_images("mnist", folder=FOLDER / "corrupt")
    same(str(caught.value))


def test_hosts_of_which_only_some_have_the_data_are_told(mnist, monkeypatch):
    mnist("good")
    monkeypatch.setattr(together, "looks_for_host", lambda: True)  # as if every rank were a host of its own
    mine = FOLDER / f"host{ezpz.get_rank()}"
    if ezpz.get_rank() == 0:
        load = download.fetch("mnist", mine)
        assert load.is_dir()
    monkeypatch.setenv("EZPZ_DATA", str(mine))
    with pytest.raises(MachineError, match="at hand on some hosts only") as caught:
        load_images("mnist", folder=mine, download=False)
    same(str(caught.value))
    assert f"host{ezpz.get_world_size() - 1}" in str(caught.value) or "host1" in str(caught.value)


def test_hosts_that_all_lack_the_data_take_the_reason_of_rank_0(mnist, monkeypatch):
    mnist("good")
    monkeypatch.setattr(together, "looks_for_host", lambda: True)
    monkeypatch.setenv("EZPZ_DATA", str(FOLDER / "nowhere"))
    found = load_images("mnist", folder=FOLDER / f"empty{ezpz.get_rank()}", download=False)
    assert "/empty0/" in same(found.origin)


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
        monkeypatch.setattr(together, "looks_for_host", lambda: True)  # as if each were on a host of its own
        with pytest.raises(MachineError) as caught:
            load_tokens("apart.txt", folder=tmp_path, tokenizer=load_tokenizer("bytes"))
        assert told in same(str(caught.value))
