"""Models that the trainers share, each in a file that a person reads in one sitting."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.models.attention import ATTENTIONS as ATTENTIONS
    from ezpz.models.attention import check_attention as check_attention
    from ezpz.models.cnn import CNN as CNN
    from ezpz.models.gpt import GPT as GPT
    from ezpz.models.gpt import GPTConfig as GPTConfig
    from ezpz.models.llama import Llama as Llama
    from ezpz.models.llama_config import LLAMA_SIZES as LLAMA_SIZES
    from ezpz.models.llama_config import LlamaConfig as LlamaConfig
    from ezpz.models.llama_config import ffn_width as ffn_width
    from ezpz.models.llama_for_hugging_face import llama_layout as llama_layout
    from ezpz.models.mlp import MLP as MLP
    from ezpz.models.vit import VisionTransformer as VisionTransformer
    from ezpz.models.vit import ViTConfig as ViTConfig

_HOME_OF = {
    "ATTENTIONS": "attention",
    "CNN": "cnn",
    "GPT": "gpt",
    "GPTConfig": "gpt",
    "LLAMA_SIZES": "llama_config",
    "Llama": "llama",
    "LlamaConfig": "llama_config",
    "MLP": "mlp",
    "ViTConfig": "vit",
    "VisionTransformer": "vit",
    "check_attention": "attention",
    "ffn_width": "llama_config",
    "llama_layout": "llama_for_hugging_face",
}

__all__ = [
    "ATTENTIONS",
    "CNN",
    "GPT",
    "LLAMA_SIZES",
    "MLP",
    "GPTConfig",
    "Llama",
    "LlamaConfig",
    "ViTConfig",
    "VisionTransformer",
    "check_attention",
    "ffn_width",
    "llama_layout",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME_OF:
        raise AttributeError(f"module 'ezpz.models' has no attribute {name!r}")
    return getattr(import_module(f"ezpz.models.{_HOME_OF[name]}"), name)
