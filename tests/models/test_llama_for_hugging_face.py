"""Names and order of weights in Hugging Face's way of writing a Llama; `transformers` itself: tests/checkpoint."""

from dataclasses import replace

import pytest
import torch

from ezpz.models import LLAMA_SIZES, Llama, LlamaConfig, llama_layout

CONFIG = LlamaConfig(vocab_size=48, dim=32, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=40, max_seq_len=16)


@pytest.mark.parametrize("tied", [False, True])
def test_every_weight_has_one_name_there_and_comes_back(tied):
    model = Llama(replace(CONFIG, tied=tied))
    layout = llama_layout(model.config)
    assert {*layout.names, *layout.shared} == set(model.state_dict())
    assert len(set(layout.names.values())) == len(layout.names)
    assert ("lm_head.weight" in layout.names.values()) is not tied
    for name, weight in model.state_dict().items():
        there = layout.to_theirs(name, weight)
        assert there.shape == weight.shape
        assert torch.equal(layout.to_ours(name, there), weight)


def test_the_even_features_of_a_head_come_first_there():
    layout = llama_layout(CONFIG)
    rows = torch.arange(16.0)[:, None].expand(16, 32)  # two heads of 8 for keys
    there = layout.to_theirs("layers.1.attention.wk.weight", rows)[:, 0].tolist()
    assert there == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    assert torch.equal(layout.to_theirs("layers.1.attention.wv.weight", rows), rows)


def test_the_largest_size_has_the_names_of_llama_3_8b():
    layout = llama_layout(LLAMA_SIZES["8b"])
    assert len(layout.names) == 291
    assert layout.names["layers.31.feed_forward.w2.weight"] == "model.layers.31.mlp.down_proj.weight"
    told = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "rope_theta": 500000.0,
        "vocab_size": 128256,
    }
    assert told.items() <= layout.config.items()
    assert "rope_scaling" not in layout.config


def test_what_shapes_do_not_show_is_compared():
    layout = llama_layout(CONFIG)
    assert layout.objection(layout.config) == ""
    assert layout.remark(layout.config) == ""
    for key, value, told in (
        ("num_attention_heads", 8, "its num_attention_heads is 8, and that of this model 4"),
        ("rope_theta", 5e5, "its rope_theta is 500000.0, and that of this model 10000.0"),
        ("rms_norm_eps", 1e-6, "its rms_norm_eps is 1e-06, and that of this model 1e-05"),
        ("model_type", "mistral", "its model_type is mistral, and that of this model llama"),
    ):
        assert layout.objection({**layout.config, key: value}) == told
    newer = {**layout.config, "rope_parameters": {"rope_theta": 3.0, "rope_type": "default"}}
    assert "rope_theta is 3.0" in layout.objection(newer)
    stretched = {**layout.config, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
    assert layout.objection(stretched) == ""
    assert "stretched (llama3)" in layout.remark(stretched)
