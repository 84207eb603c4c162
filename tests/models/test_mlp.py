import torch

from ezpz.models import MLP


def test_the_seeds_network_has_the_seeds_number_of_parameters():
    model = MLP(128, (1024, 512, 256, 128), 128)
    assert sum(parameter.numel() for parameter in model.parameters()) == 837_632
    assert model(torch.zeros(3, 128)).shape == (3, 128)


def test_no_activation_follows_the_last_layer():
    assert isinstance(MLP(2, (3,), 4).layers[-1], torch.nn.Linear)
