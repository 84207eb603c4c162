"""Images by name: real, shipped, made; and what is said when they are made."""

import importlib.util
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from hub import Rows, put

from ezpz.errors import MachineError, UsageError
from ezpz.log import get_logger
from ezpz.train import SyntheticImages, load_images
from ezpz.train.data import hugging_face_data, images


@pytest.fixture
def small(monkeypatch):
    """The shapes of the real sets with few images, so that making them takes no time."""
    few = {name: (*shape[:3], 96, 32) for name, shape in images._SHAPES.items()}
    monkeypatch.setattr(images, "_SHAPES", few)


@pytest.fixture
def lines(monkeypatch, caplog):
    monkeypatch.setattr(get_logger("ezpz.train"), "propagate", True)
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def test_known_names_are_those_of_the_hub(monkeypatch, tmp_path):
    hub = put(monkeypatch, mnist={"train": Rows(6), "test": Rows(2, begin=7)})
    found = load_images("mnist", folder=tmp_path)
    assert hub.asked == [("ylecun/mnist", None, {"cache_dir": str(tmp_path)})]
    (x, y), (test_x, test_y) = found.train, found.test
    assert (x.shape, x.dtype, y.dtype) == ((6, 1, 2, 3), torch.uint8, torch.int64)
    assert x[:, 0, 1, 2].tolist() == y.tolist() == list(range(6))
    assert test_x[:, 0, 0, 0].tolist() == [7, 8]
    assert test_y.tolist() == [0, 1]
    assert found.describe() == {
        "data": "mnist",
        "data_origin": "Hugging Face ylecun/mnist",
        "classes": 10,
        "shape": [1, 2, 3],
        "train_samples": 6,
        "test_samples": 2,
    }


def test_images_of_any_name_in_colour(monkeypatch):
    hub = put(monkeypatch, flowers={"train": Rows(3, mode="RGB"), "validation": Rows(1, mode="RGB")})
    assert load_images("hf:me/flowers@small").train[0].shape == (3, 3, 2, 3)
    assert hub.asked[0][:2] == ("me/flowers", "small")


def test_what_is_no_set_of_images_is_told(subtests, monkeypatch):
    texts = Rows(1)
    texts.features = {"text": None}
    rows = {"train": Rows(3), "test": Rows(1)}
    put(
        monkeypatch,
        one=Rows(2),
        trained={"train": Rows(2)},
        texts=rows | {"train": texts},
        sizes=rows | {"train": Rows(3, size=None)},
    )
    for name, told in {
        "hf:one:train": "the splits of a name with one alone",
        "hf:trained": "the splits train .*expected train, and test or validation",
        "hf:texts": "the columns text .*one of images and one of labels",
        "hf:sizes": "images of several sizes .*images:FOLDER",
    }.items():
        with subtests.test(name), pytest.raises(UsageError, match=told):
            load_images(name)
    with pytest.raises(MachineError, match=r"cannot load hf:absent: Couldn't reach 'absent' on the Hub .*same HF_HOME"):
        load_images("hf:absent")


@pytest.mark.parametrize(
    ("name", "shape"), [("mnist", (1, 28, 28)), ("fashion_mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))]
)
def test_without_data_images_of_its_shape_are_made_and_it_is_said(small, lines, tmp_path, monkeypatch, name, shape):
    put(monkeypatch)
    found = load_images(name, folder=tmp_path)
    assert (found.train[0].shape, found.test[0].shape) == ((96, *shape), (32, *shape))
    assert (found.train[0].dtype, found.train[1].dtype, found.classes) == (torch.uint8, torch.int64, 10)
    assert found.origin.startswith("synthetic (cannot load hf:")
    said = lines()
    assert [level for level, _ in said] == ["WARNING"]
    assert said[0][1].startswith(f"data={found.origin}")
    assert "\n" not in said[0][1]


def test_without_the_package_the_reason_says_what_to_install(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install datasets pillow" in load_images("mnist").origin
    with pytest.raises(UsageError, match="pip install datasets pillow"):
        load_images("hf:me/flowers")


def test_without_the_package_no_hub_is_asked(monkeypatch):
    asked = []
    find = importlib.util.find_spec
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if name == "datasets" else find(name, *of))
    monkeypatch.setattr(hugging_face_data, "_leave_out_the_hub_where_it_is_silent", lambda: asked.append(1))
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(UsageError, match="pip install datasets pillow"):
        load_images("hf:me/flowers")
    assert asked == []


def test_a_run_that_may_not_download_asks_nobody(small, monkeypatch):
    hub = put(monkeypatch)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert "export HF_HUB_OFFLINE=1" in load_images("mnist", download=False).origin
    assert hub.asked == []


@pytest.mark.parametrize(("address", "offline"), [("http://127.0.0.1:9", "1"), ("", None)])
def test_a_hub_that_does_not_answer_is_left_out(monkeypatch, address, offline):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:  # it answers: 501
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", address or f"http://127.0.0.1:{server.server_port}")
        hugging_face_data._leave_out_the_hub_where_it_is_silent()
        server.shutdown()
    assert os.environ["HF_HUB_OFFLINE"] == (offline or "0")


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
