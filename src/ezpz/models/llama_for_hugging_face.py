"""Translate a `Llama` to and from Hugging Face's ``LlamaForCausalLM``: names, order of rows, and ``config.json``.

    tok_embeddings.weight               model.embed_tokens.weight
    layers.0.attention.wq.weight        model.layers.0.self_attn.q_proj.weight            rows reordered, wk alike
    output.weight                       lm_head.weight                                    none where it is the embedding

Rotary positions turn pairs of features: neighbours here, as in Meta's weights; feature i and i + head_dim / 2 of a head
there. So the rows of wq and wk that make a head's even features come first there, then those of the odd ones. Source:
github.com/huggingface/ transformers, models/llama/{modeling_llama,configuration_llama}.py; names as of version 4 and 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ezpz.models.llama_config import LlamaConfig

_OUTSIDE = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
_INSIDE = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TURNED = (".attention.wq.weight", ".attention.wk.weight")
# What changes the numbers that a model computes though shapes need not show it, and what is meant where it is not
# written.
_MEANT = {
    "model_type": "llama",
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}


class LlamaLayout:
    """The two ways to write one Llama; made by `llama_layout`.

    Attributes:
        names: Name of each weight here, to its name there.
        config: Content of ``config.json``, but for the number format.
        shared: Names here of weights that are another one's, and are not written.
        tied: Name there, to the name of the weight that it is the same as where it is not written.
    """

    def __init__(self, config: LlamaConfig, bos: int | None, eos: int | None) -> None:
        self._head_dim = config.head_dim
        self.names = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in _OUTSIDE.items()}
        for layer in range(config.n_layers):
            for ours, theirs in _INSIDE.items():
                self.names[f"layers.{layer}.{ours}.weight"] = f"model.layers.{layer}.{theirs}.weight"
        self.tied = {"lm_head.weight": "model.embed_tokens.weight"}
        self.shared = ("output.weight",) if config.tied else ()
        for ours in self.shared:
            del self.names[ours]
        self.config: dict[str, Any] = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": config.vocab_size,
            "hidden_size": config.dim,
            "intermediate_size": config.ffn_dim,
            "num_hidden_layers": config.n_layers,
            "num_attention_heads": config.n_heads,
            "num_key_value_heads": config.n_kv_heads,
            "head_dim": config.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": config.max_seq_len,
            "rms_norm_eps": config.norm_eps,
            "rope_theta": config.rope_theta,
            "tie_word_embeddings": config.tied,
            "attention_bias": False,
            "mlp_bias": False,
            "initializer_range": 0.02,
            "use_cache": True,
            "bos_token_id": bos,
            "eos_token_id": eos,
        }

    def to_theirs(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a whole weight, called ``name`` here, as it is written there; of the same shape."""
        if not name.endswith(_TURNED):
            return tensor
        return tensor.unflatten(0, (-1, self._head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)

    def to_ours(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a whole weight, called ``name`` here, as this model has it, out of what is written there."""
        if not name.endswith(_TURNED):
            return tensor
        return tensor.unflatten(0, (-1, 2, self._head_dim // 2)).transpose(1, 2).flatten(0, 2)

    def objection(self, config: Mapping[str, Any]) -> str:
        """Return how another ``config.json`` differs where shapes do not show it, as the end of a sentence, or ""."""
        theirs = {**_MEANT, **config}
        theirs.setdefault("num_key_value_heads", theirs["num_attention_heads"])
        theirs.update({key: value for key, value in _rotary(config).items() if key == "rope_theta"})
        for key in (*_MEANT, "num_key_value_heads"):
            if theirs[key] != self.config[key]:
                return f"its {key} is {theirs[key]}, and that of this model {self.config[key]}"
        return ""

    def remark(self, config: Mapping[str, Any]) -> str:
        """Return what another ``config.json`` asks for and this model does not do, in a sentence, or ""."""
        rotary = _rotary(config)
        kind = rotary.get("rope_type", rotary.get("type", "default"))
        if kind == "default":
            return ""
        return (
            f"its rotary positions are stretched ({kind}), and those of this model are not: far positions mean "
            "something else"
        )


def llama_layout(config: LlamaConfig, *, bos: int | None = None, eos: int | None = None) -> LlamaLayout:
    """Return how a `Llama` of these sizes is written for, and read from, Hugging Face's ``LlamaForCausalLM``.

    Args:
        config: Of the model.
        bos: Id of the tokenizer that begins a text, for ``config.json``.
        eos: Id that ends a text, at which generating stops.
    """
    return LlamaLayout(config, bos, eos)


def _rotary(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entry for rotary positions: ``rope_scaling`` in version 4, ``rope_parameters`` in 5."""
    positions = config.get("rope_parameters") or config.get("rope_scaling")
    return positions if isinstance(positions, dict) else {}
