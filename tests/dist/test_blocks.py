"""Which parts of a model are its blocks, and which may not be taken apart."""

import pytest
from torch import nn

from ezpz.dist.model_blocks import find_blocks, largest_parts, select_blocks, without_shared
from ezpz.errors import UsageError


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)


class Other(Block):
    pass


class Holder(nn.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def many(count=3, kind=Block):
    return [kind() for _ in range(count)]


def names(model, blocks=None):
    name_of = {id(module): name for name, module in model.named_modules()}
    return [name_of[id(block)] for block in (find_blocks(model) if blocks is None else blocks)]


@pytest.mark.parametrize("container", [nn.ModuleList, lambda parts: nn.Sequential(*parts)])
def test_children_of_one_type_in_a_list_are_blocks(container):
    model = Holder(embed=nn.Embedding(8, 4), layers=container(many()), head=nn.Linear(4, 8))
    assert names(model) == ["layers.0", "layers.1", "layers.2"]


def test_children_of_one_type_in_a_dict_are_blocks():
    model = Holder(layers=nn.ModuleDict({str(index): block for index, block in enumerate(many())}))
    assert names(model) == ["layers.0", "layers.1", "layers.2"]


def test_blocks_of_encoder_and_decoder_deep_inside_are_found_in_order():
    inner = Holder(encoder=Holder(layers=nn.ModuleList(many(2))), decoder=Holder(h=nn.Sequential(*many(2, Other))))
    assert names(Holder(model=inner)) == [
        "model.encoder.layers.0",
        "model.encoder.layers.1",
        "model.decoder.h.0",
        "model.decoder.h.1",
    ]


def test_the_outermost_repetition_counts_so_that_experts_stay_in_their_layer():
    layers = [Holder(experts=nn.ModuleList(many(4)), router=nn.Linear(4, 4)) for _ in range(2)]
    assert names(Holder(layers=nn.ModuleList(layers))) == ["layers.0", "layers.1"]


def test_an_odd_layer_among_repeated_ones_is_a_block_too_and_so_is_a_lists_only_layer():
    assert names(Holder(layers=nn.ModuleList([*many(2), Other()]))) == ["layers.0", "layers.1", "layers.2"]
    assert names(Holder(layers=nn.ModuleList([Block()]))) == ["layers.0"]
    assert find_blocks(Holder(net=nn.Sequential(Block()))) == []


def test_lists_of_lists_are_looked_into():
    stages = nn.ModuleList(nn.Sequential(*many(2)) for _ in range(2))
    assert names(Holder(stages=stages)) == ["stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1"]
    plain = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)))
    assert names(Holder(net=plain)) == ["net.0", "net.1", "net.2"]


def test_attributes_of_one_type_are_blocks_unless_something_inside_them_repeats():
    assert names(Holder(down1=Block(), down2=Block(), up=Other())) == ["down1", "down2"]
    assert names(Holder(one=Holder(layers=nn.ModuleList(many(2))), two=Holder(layers=nn.ModuleList(many(2))))) == [
        "one.layers.0",
        "one.layers.1",
        "two.layers.0",
        "two.layers.1",
    ]


def test_one_module_in_several_places_is_one_block():
    block = Block()
    assert names(Holder(layers=nn.ModuleList([block, block, Block()]))) == ["layers.0", "layers.2"]


def test_layers_without_parts_and_modules_without_parameters_do_not_repeat():
    assert find_blocks(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))) == []
    activations = [Holder(act=nn.ReLU()) for _ in range(3)]
    assert find_blocks(Holder(layers=nn.ModuleList(activations))) == []


def test_without_repetition_the_large_children_are_parts():
    cnn = Holder(conv1=nn.Conv2d(1, 8, 3), conv2=nn.Conv2d(8, 16, 3), fc1=nn.Linear(400, 128), fc2=nn.Linear(128, 10))
    assert find_blocks(cnn) == []
    assert names(cnn, largest_parts(cnn)) == ["fc1"]
    mlp = Holder(net=nn.Sequential(*(nn.Linear(8, 8) for _ in range(20))))
    assert len(largest_parts(mlp)) == 20
    assert largest_parts(nn.Linear(4, 4)) == []


def test_a_user_may_name_blocks_by_class_name_or_function():
    model = Holder(layers=nn.ModuleList([Block(), Other()]), head=nn.Linear(4, 2))
    assert names(model, select_blocks(model, Other)) == ["layers.1"]
    assert names(model, select_blocks(model, "Block")) == ["layers.0"]
    assert names(model, select_blocks(model, (Other, "Block"))) == ["layers.0", "layers.1"]
    small = select_blocks(model, lambda module: getattr(module, "out_features", 0) == 2)
    assert names(model, small) == ["head"]


def test_a_wish_that_fits_nothing_is_an_error(subtests):
    for wish in ("Blok", nn.Conv2d, lambda _: False, [], 3):
        with (
            subtests.test(wish=wish),
            pytest.raises(UsageError, match=r"expected (module classes, their names|a module class)"),
        ):
            select_blocks(Holder(layers=nn.ModuleList(many())), wish)


def test_parts_that_share_a_weight_stay_with_the_root():
    model = Holder(embed=nn.Embedding(8, 4), layers=nn.ModuleList(many()), head=nn.Linear(4, 8, bias=False))
    model.head.weight = model.embed.weight
    assert names(model, without_shared(model, find_blocks(model))) == ["layers.0", "layers.1", "layers.2"]
    assert without_shared(model, [model.embed, model.head]) == []
    model.layers[0].up.weight = model.layers[2].up.weight
    assert names(model, without_shared(model, find_blocks(model))) == ["layers.1"]


def test_what_a_dropped_inner_block_held_counts_for_the_one_around_it():
    model = Holder(outer=Holder(inner=Block(), rest=nn.Linear(4, 4)), tied=nn.Linear(4, 8))
    model.outer.inner.up.weight = model.tied.weight
    assert without_shared(model, [model.outer, model.outer.inner]) == []
