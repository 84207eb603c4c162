from ezpz.compat.module_names import summarize_model as summarize_model
from ezpz.models.attention import ATTENTIONS as ATTENTIONS, check_attention as check_attention
from ezpz.models.cnn import CNN as CNN
from ezpz.models.gpt import GPT as GPT, GPTConfig as GPTConfig
from ezpz.models.llama import Llama as Llama
from ezpz.models.llama_config import LLAMA_SIZES as LLAMA_SIZES, LlamaConfig as LlamaConfig, ffn_width as ffn_width
from ezpz.models.llama_for_hugging_face import llama_layout as llama_layout
from ezpz.models.mlp import MLP as MLP
from ezpz.models.vit import ViTConfig as ViTConfig, VisionTransformer as VisionTransformer
