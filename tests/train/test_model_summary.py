"""The tree of a model: the anchors of its parameters, on the meta device."""

import torch
from torch import nn

from ezpz.models import LLAMA_SIZES, Llama, LlamaConfig, VisionTransformer
from ezpz.train import summarize

LLAMA = """\
===================================================
Llama                               33,599,744
├─ tok_embeddings: Embedding         8,192,000
├─ layers: ModuleList               17,215,488
│  └─ 0-23: 24 x Block                 717,312 each
│     ├─ attention: Attention          163,840
│     ├─ feed_forward: FeedForward     552,960
│     ├─ attention_norm: RMSNorm           256
│     └─ ffn_norm: RMSNorm                 256
├─ norm: RMSNorm                           256
└─ output: Linear                    8,192,000
===================================================
Total params: 33,599,744
Trainable params: 33,599,744
Non-trainable params: 0
==================================================="""


def on_meta(build):
    with torch.device("meta"):
        return build()


def test_the_language_model_of_the_default_sizes():
    assert summarize(on_meta(lambda: Llama(LlamaConfig()))) == LLAMA


def test_the_vision_transformer_shows_positions_that_belong_to_no_layer():
    shown = summarize(on_meta(VisionTransformer), depth=2)
    assert "Total params: 304,250,856" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["├─", "pos_embed:", "Parameter", "200,704"] in lines
    assert ["│", "└─", "0-23:", "24", "x", "Block", "12,593,152", "each"] in lines
    assert ["└─", "head:", "Linear", "1,025,000"] in lines


def test_a_tied_weight_counts_once_and_is_said_to_be_shared():
    config = LLAMA_SIZES["125m"]
    shown = summarize(on_meta(lambda: Llama(config)), depth=1)
    (line,) = (line for line in shown.splitlines() if "output" in line)
    assert line.split() == ["└─", "output:", "Linear", "0", "(shared)"]


def test_frozen_weights_are_told_and_unlike_neighbours_are_not_folded():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 3))
    model[0].weight.requires_grad_(requires_grad=False)
    shown = summarize(model)
    assert "Trainable params: 17\nNon-trainable params: 4" in shown
    assert "0-1: 2 x Linear" in shown
    assert "2: Linear" in shown
