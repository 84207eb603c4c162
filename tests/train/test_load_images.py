"""Images by name: real, shipped, made; and what is said when they are made."""

import gzip

import pytest
import torch
from mirror import IDX_NAMES, Mirror, cifar_archive, cifar_records, dataset, tiny_mnist

from ezpz.errors import UsageError
from ezpz.log import get_logger
from ezpz.train import SyntheticImages, load_images
from ezpz.train.data import download, images
from ezpz.train.data.download import Patience


@pytest.fixture
def small(monkeypatch):
    """The shapes of the real sets with few images, so that making them takes no time."""
    few = {name: (*shape[:3], 96, 32) for name, shape in images._SHAPES.items()}
    monkeypatch.setattr(images, "_SHAPES", few)


@pytest.fixture
def lines(monkeypatch, caplog):
    monkeypatch.setattr(get_logger("ezpz.train"), "propagate", True)
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def test_mnist_comes_from_a_mirror_then_from_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Mirror(tiny_mnist()) as mirror:
        monkeypatch.setitem(download.CATALOG, "mnist", dataset("mnist", mirror.files, mirror.url("good")))
        first = load_images("mnist", folder=tmp_path)
        assert first.origin == f"downloaded from {mirror.url('good')}"
    again = load_images("mnist", folder=tmp_path, download=False)
    assert again.origin == f"cache {tmp_path / 'mnist'}"
    for found in (first, again):
        (x, y), (test_x, test_y) = found.train, found.test
        assert (x.shape, x.dtype, y.dtype) == ((6, 1, 2, 2), torch.uint8, torch.int64)
        assert x.flatten().tolist() == list(range(24))
        assert y.tolist() == list(range(6))
        assert test_x[1].flatten().tolist() == [4, 5, 6, 7]
        assert test_y.tolist() == [7, 8]
    assert again.describe() == {
        "data": "mnist",
        "data_origin": again.origin,
        "classes": 10,
        "shape": [1, 2, 2],
        "train_samples": 6,
        "test_samples": 2,
    }


def test_cifar_comes_out_of_its_archive(monkeypatch, tmp_path):
    names = [f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)]
    (tmp_path / "cifar10").mkdir()
    path = tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    cifar_archive(path, {name: cifar_records(4) for name in [*names, "cifar-10-batches-bin/test_batch.bin"]})
    monkeypatch.setitem(download.CATALOG, "cifar10", dataset("cifar10", {path.name: path.read_bytes()}))
    found = load_images("cifar10", folder=tmp_path)
    assert found.train[0].shape == (20, 3, 32, 32)
    assert found.test[1].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "shape"), [("mnist", (1, 28, 28)), ("fashion_mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))]
)
def test_without_data_images_of_its_shape_are_made_and_it_is_said(small, lines, tmp_path, monkeypatch, name, shape):
    monkeypatch.setenv("EZPZ_DATA", str(tmp_path / "data"))
    found = load_images(name, folder=tmp_path, download=False)
    assert (found.train[0].shape, found.test[0].shape) == ((96, *shape), (32, *shape))
    assert (found.train[0].dtype, found.train[1].dtype, found.classes) == (torch.uint8, torch.int64, 10)
    assert found.origin.startswith(f"synthetic (not in {tmp_path / name} nor ")
    said = lines()
    assert [level for level, _ in said] == ["WARNING"]
    assert said[0][1].startswith(f"data={found.origin}")
    assert "\n" not in said[0][1]


def test_a_host_without_a_network_falls_back_with_the_reason(small, monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(
        download, "Patience", lambda **_: Patience(attempt=1.0, total=3.0)
    )  # the 404 comes late on a busy machine
    with Mirror(tiny_mnist()) as mirror:
        monkeypatch.setitem(
            download.CATALOG, "mnist", dataset("mnist", mirror.files, mirror.url("silent"), mirror.url("absent"))
        )
        origin = load_images("mnist", folder=tmp_path).origin
    assert "no answer within 1.0 s" in origin
    assert "HTTP Error 404" in origin


def test_files_with_the_right_sum_but_no_images_are_refused(monkeypatch, tmp_path):
    files = {name: gzip.compress(b"<!DOCTYPE html>") for name in IDX_NAMES}
    monkeypatch.setitem(download.CATALOG, "mnist", dataset("mnist", files))
    (tmp_path / "mnist").mkdir()
    for name, data in files.items():
        (tmp_path / "mnist" / name).write_bytes(data)
    with pytest.raises(UsageError, match="begins with 1008813135"):
        load_images("mnist", folder=tmp_path)


def test_digits_ship_and_their_split_never_changes():
    one, other = load_images("digits", seed=1), load_images("digits", seed=2)
    assert one.origin == "shipped with ezpz"
    assert (one.train[0].shape, one.test[0].shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert one.train[0].max() == 1.0
    assert torch.equal(one.test[0], other.test[0])
    counts = one.test[1].bincount()
    assert counts.min() >= 20  # all digits, from all writers: the file itself is ordered by writers
    both = torch.cat([one.train[0], one.test[0]]).flatten(1)
    assert len(torch.unique(both, dim=0)) > 1780


def test_an_unknown_name_is_offered_the_nearest():
    with pytest.raises(UsageError, match=r"unknown images 'fashion-mnits'.*Did you mean fashion_mnist\?"):
        load_images("fashion-mnits")


def test_made_images_depend_on_seed_and_index_alone():
    made = SyntheticImages(1000, classes=7, size=28, seed=3)
    x, y = made(torch.tensor([5, 900, 17]))
    assert (x.shape, x.dtype, y.dtype) == ((3, 3, 28, 28), torch.float32, torch.int64)
    again, label = SyntheticImages(1000, classes=7, size=28, seed=3)(torch.tensor([900]))
    assert torch.allclose(again[0], x[1], atol=1e-6)
    assert label[0] == y[1]
    assert not torch.allclose(SyntheticImages(1000, classes=7, size=28, seed=4)(torch.tensor([900]))[0], again)
    assert 0 <= x.min() < x.max() <= 1
    with pytest.raises(UsageError, match="expected at least 1 of each"):
        SyntheticImages(10, classes=0, size=28)


@pytest.mark.slow
def test_made_images_of_a_class_share_a_pattern_that_moves_and_noise_that_does_not():
    made = SyntheticImages(4000, classes=4, size=28, channels=1, seed=0)
    x, y = made(torch.arange(4000))
    assert y.bincount().min() > 850
    spectra = torch.fft.rfft2(x[:, 0] - 0.5).abs()  # unchanged when a pattern moves around
    means = torch.stack([spectra[y == label][:500].mean(0) for label in range(4)])
    later = spectra[2500:].flatten(1) @ (means - means.mean(0)).flatten(1).T
    score = later - (means**2 - (means.mean(0)) ** 2).flatten(1).sum(1) / 2
    assert (score.argmax(1) == y[2500:]).float().mean() > 0.9
    pixels = (x[:400] - 0.5).flatten(1)
    alike = torch.corrcoef(pixels)[~torch.eye(400, dtype=torch.bool)]
    assert alike.max() < 0.98  # no image comes twice


def test_large_images_of_many_classes_need_little_memory():
    made = SyntheticImages(10**9, classes=1000, size=224, seed=0)
    tables = [value for value in vars(made).values() if isinstance(value, torch.Tensor)]
    assert 0 < sum(table.numel() * table.element_size() for table in tables) < 20e6
    x, y = made(torch.tensor([0, 10**9 - 1]))
    assert x.shape == (2, 3, 224, 224)
    assert y.max() < 1000
