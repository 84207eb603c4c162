import pytest
import torch

from ezpz.errors import UsageError
from ezpz.models import CNN


@pytest.fixture(autouse=True)
def _cache_of_inductor(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch's optimizers, compiler and meta kernels set it


def size_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_network_for_mnist_has_the_known_names_and_number_of_parameters():
    model = CNN()
    assert [name for name, _ in model.named_children()] == ["conv1", "conv2", "dropout1", "dropout2", "fc1", "fc2"]
    assert size_of(model) == 1_199_882
    assert (model.dropout1.p, model.dropout2.p) == (0.25, 0.5)


def test_other_images_have_networks_too():
    for sizes, parameters in (
        ({"image_size": 8, "padding": 1}, 151_306),
        ({"image_size": 32, "channels": 3}, 1_626_442),
        ({"image_size": 6}, 28_426),
    ):
        model = CNN(**sizes)
        images = torch.zeros(3, sizes.get("channels", 1), sizes["image_size"], sizes["image_size"])
        assert size_of(model) == parameters
        assert model(images).shape == (3, 10)


def test_it_returns_logits_and_not_logarithms_of_probabilities():
    torch.manual_seed(0)
    sums = CNN(8, padding=1)(torch.rand(5, 1, 8, 8)).exp().sum(1)
    assert (sums - 1).abs().min() > 0.1


@pytest.mark.parametrize(("size", "padding", "hint"), [(5, 0, "expected at least 6"), (1, 1, "expected at least 2")])
def test_an_image_of_which_nothing_would_be_left_is_refused(size, padding, hint):
    with pytest.raises(UsageError, match=hint) as caught:
        CNN(size, padding=padding)
    assert ("padding=1." in str(caught.value)) == (padding == 0)
    CNN(6 - 4 * padding, padding=padding)  # the size that the error names


def test_it_learns_one_batch_by_heart():
    torch.manual_seed(0)
    model = CNN(8, padding=1).eval()  # without dropout
    images, labels = torch.rand(16, 1, 8, 8), torch.randint(10, (16,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(200):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        if loss < 0.05:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05
