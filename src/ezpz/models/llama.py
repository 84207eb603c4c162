"""A Llama-style language model: RMS norms, rotary positions, grouped-query attention, gated feed-forward, no biases.

    tokens (B, T) → embeddings (B, T, dim) → layers of attention and feed-forward → norm → logits (B, T, vocabulary)

Names of modules and the order of the rotary pairs are those of Meta's released weights (github.com/meta-llama/llama3);
the architecture is described in arXiv:2302.13971 and, with grouped queries, in arXiv:2407.21783. `ezpz.llama_plan` cuts
it for tensor parallelism: attention finds its heads from the width that it is given, because a rank may hold a part of
them.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from ezpz.errors import UsageError
from ezpz.models.llama_config import LlamaConfig

_COMPLEX_ON = {"cpu", "cuda", "meta"}  # others may have no kernels for complex numbers
_HAS_GQA = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)  # on CUDA 2.5, and on the CPU's kernel later


class RotaryTable:
    """Cosines and sines ``(2, length, head_dim / 2)`` in float32, on their way to the layers.

    As bare tensors FSDP would round them to the precision that it computes in, as it does with all inputs of a block.

    Attributes:
        values: The table.
        turns: The same as complex numbers ``(length, 1, head_dim / 2)``; None where `rotate` takes real ones.
    """

    __slots__ = ("turns", "values")

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        # A compiler of torch writes one kernel for real numbers, and none for complex ones.
        real = torch.compiler.is_compiling() or values.device.type not in _COMPLEX_ON
        self.turns = None if real else torch.complex(*values.float()).unsqueeze(1)


class Attention(nn.Module):  # type: ignore[misc]  # torch is Any to the type check
    """Causal attention with rotary positions; groups of queries share keys and values."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        kv_dim = config.n_kv_heads * config.head_dim
        self.wq = nn.Linear(config.dim, config.dim, bias=False)
        self.wk = nn.Linear(config.dim, kv_dim, bias=False)
        self.wv = nn.Linear(config.dim, kv_dim, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: torch.Tensor, rope: RotaryTable) -> torch.Tensor:
        """Return ``(batch, length, dim)`` for ``x`` of the same shape, and the positions of its length."""
        batch, length, _ = x.shape
        q, k, v = (each(x).view(batch, length, -1, self.head_dim) for each in (self.wq, self.wk, self.wv))
        q, k = (rotate(each, rope).transpose(1, 2) for each in (q, k))
        v = v.transpose(1, 2)
        if kernel_repeats(q, k):
            y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))
            y = scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.wo(y.transpose(1, 2).reshape(batch, length, -1))
        return out


def kernel_repeats(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Return whether a fused kernel of torch's attention shares keys and values among groups of queries by itself.

    On CUDA the flash kernel does, and later cuDNN's too, for two bytes a number and from compute capability 8.0 on;
    without them ``enable_gqa`` leaves the slow kernel, which writes all scores to memory.
    """
    if q.shape[1] == k.shape[1] or not _HAS_GQA:
        return False
    if q.device.type == "cpu":
        return True
    if q.device.type != "cuda" or q.dtype not in {torch.bfloat16, torch.float16}:
        return False
    module = getattr(torch, q.device.type)
    # Without a device the tensors are those of a simulation (`ezpz simulate`), of a card of today.
    return not module.is_available() or module.get_device_properties(q.device).major >= 8


class FeedForward(nn.Module):  # type: ignore[misc]  # torch is Any to the type check
    """``w2(silu(w1 x) * w3 x)``, for every position by itself."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.w2 = nn.Linear(config.ffn_dim, config.dim, bias=False)
        self.w3 = nn.Linear(config.dim, config.ffn_dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``(batch, length, dim)`` for ``x`` of the same shape."""
        out: torch.Tensor = self.w2(silu(self.w1(x)) * self.w3(x))
        return out


class Block(nn.Module):  # type: ignore[misc]  # torch is Any to the type check
    """Attention and feed-forward, each on a normalised input and added to what came in."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.ffn_norm = nn.RMSNorm(config.dim, config.norm_eps)

    def forward(self, x: torch.Tensor, rope: RotaryTable) -> torch.Tensor:
        """Return ``(batch, length, dim)`` for ``x`` of the same shape, and the positions of its length."""
        x = x + self.attention(self.attention_norm(x), rope)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):  # type: ignore[misc]  # torch is Any to the type check
    """Tokens to logits of the next token."""

    rope: torch.Tensor

    def __init__(self, config: LlamaConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or LlamaConfig()
        device = torch.get_default_device()
        with torch.device("meta"):  # numbers are drawn once, by init_weights, so that a model filled later has the same
            self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
            self.layers = nn.ModuleList(Block(config) for _ in range(config.n_layers))
            self.norm = nn.RMSNorm(config.dim, config.norm_eps)
            self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
            table = torch.empty(2, config.max_seq_len, config.head_dim // 2, dtype=torch.float32)
            self.register_buffer("rope", table, persistent=False)  # follows from the configuration
        self.to_empty(device=device)
        if config.tied:
            self.output.weight = self.tok_embeddings.weight
        self.init_weights()
        self.reset_buffers()

    def init_weights(self) -> None:
        """Draw the weights; norms are 1.

        Normal with deviation 0.02, but ``0.02 / sqrt(2 * n_layers)`` where a branch ends in the sum over layers (wo,
        w2: GPT-2's rule), and ``0.25 / sqrt(dim)`` for an output of its own, so that the first loss is near
            ``ln(vocab_size)`` at any width.
        """
        ends = 0.02 * (2 * self.config.n_layers) ** -0.5
        nn.init.normal_(self.tok_embeddings.weight, std=0.02)
        for layer in self.layers:
            attention, feed_forward = layer.attention, layer.feed_forward
            for first in (attention.wq, attention.wk, attention.wv, feed_forward.w1, feed_forward.w3):
                nn.init.normal_(first.weight, std=0.02)
            for last in (attention.wo, feed_forward.w2):
                nn.init.normal_(last.weight, std=ends)
            for norm in (layer.attention_norm, layer.ffn_norm):
                nn.init.ones_(norm.weight)
        nn.init.ones_(self.norm.weight)
        if not self.config.tied:
            nn.init.normal_(self.output.weight, std=0.25 * self.config.dim**-0.5)

    def reset_buffers(self) -> None:
        """Fill the table of rotary positions ``(2, max_seq_len, head_dim / 2)``: cosines and sines in float32."""
        pairs = torch.arange(0, self.config.head_dim, 2, dtype=torch.float32, device="cpu")
        turns = self.config.rope_theta ** (-pairs / self.config.head_dim)
        angles = torch.arange(self.config.max_seq_len, dtype=torch.float32, device="cpu")[:, None] * turns
        with torch.no_grad():
            self.rope.copy_(torch.stack((angles.cos(), angles.sin())))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits ``(batch, length, vocab_size)`` for tokens ``(batch, length)`` of int64.

        Raises:
            UsageError: The sequence is longer than max_seq_len.
        """
        length, longest = tokens.shape[1], self.config.max_seq_len
        if length > longest:
            raise UsageError(
                f"a sequence of {length} tokens is longer than max_seq_len={longest} (from LlamaConfig); expected at "
                f"most {longest}. Cut the sequence, or make the model with max_seq_len={length}."
            )
        x, rope = self.tok_embeddings(tokens), RotaryTable(self.rope[:, :length])
        for layer in self.layers:
            x = layer(x, rope)
        logits: torch.Tensor = self.output(self.norm(x))
        # A plan may make them a view of a DTensor, and FSDP warns of roots that return views; this shares memory but is
        # none.
        same: torch.Tensor = torch.ops.aten._unsafe_view(logits, logits.shape)  # noqa: SLF001  # torch has no public name
        return same


def rotate(x: torch.Tensor, rope: RotaryTable) -> torch.Tensor:
    """Turn neighbouring pairs of features by the angle of their position (arXiv:2104.09864), in float32.

    Args:
        x: Queries or keys ``(batch, length, heads, head_dim)``.
        rope: The angles of the positions.
    """
    pairs = x.float().unflatten(-1, (-1, 2))
    if not torch.compiler.is_compiling() and rope.turns is not None:  # three passes over memory instead of nine
        return torch.view_as_real(torch.view_as_complex(pairs) * rope.turns).flatten(-2).type_as(x)
    cos, sin = rope.values[:, :, None]
    even, odd = pairs.unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).type_as(x)
