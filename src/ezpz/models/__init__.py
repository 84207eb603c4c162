"""Models that the trainers share, each in a file that a person reads in one sitting."""

from __future__ import annotations

from ezpz._lazy import attach

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    # names: begin (`make names`)
    from ezpz.compat_names import summarize_model as summarize_model
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
    # names: end

__getattr__, __dir__ = attach(
    __name__,
    {
        "attention": "ATTENTIONS check_attention",
        "cnn": "CNN",
        "ezpz.compat_names": "summarize_model",
        "gpt": "GPT GPTConfig",
        "llama": "Llama",
        "llama_config": "LLAMA_SIZES LlamaConfig ffn_width",
        "llama_for_hugging_face": "llama_layout",
        "mlp": "MLP",
        "vit": "ViTConfig VisionTransformer",
    },
)
