"""Sizes of Llama-style models, from one that trains in seconds on a CPU to Llama-3-8B. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from ezpz.errors import UsageError


def ffn_width(dim: int, multiple_of: int, ffn_dim_multiplier: float | None = None) -> int:
    """Return the inner width of Llama's feed-forward: two thirds of ``4 * dim``, scaled, rounded up to a multiple."""
    width = int(2 * 4 * dim / 3)
    if ffn_dim_multiplier is not None:
        width = int(ffn_dim_multiplier * width)
    return -(-width // multiple_of) * multiple_of


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a `Llama`; the defaults have 33,599,744 parameters.

    Args:
        vocab_size: Number of different tokens.
        dim: Width of the model in features.
        n_layers: Number of blocks.
        n_heads: Heads of queries, a divisor of dim.
        n_kv_heads: Heads of keys and values, a divisor of n_heads: each serves a group of queries.
        ffn_dim: Inner width of the feed-forward, see `ffn_width`.
        norm_eps: What is added under the root of the norms.
        rope_theta: Base of the rotary positions; Llama-3 has 500,000.
        max_seq_len: Longest sequence that positions are made for.
        tied: Let the output use the embedding's weight.

    Raises:
        UsageError: The heads do not fit the width or each other.
    """

    vocab_size: int = 32000
    dim: int = 256
    n_layers: int = 24
    n_heads: int = 16
    n_kv_heads: int = 4
    ffn_dim: int = 720
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_seq_len: int = 2048
    tied: bool = False

    def __post_init__(self) -> None:
        if self.dim % (2 * self.n_heads):  # rotary positions turn pairs of features
            raise UsageError(
                f"dim={self.dim} is no multiple of {2 * self.n_heads}, twice n_heads={self.n_heads} (from "
                "LlamaConfig); expected heads of an even width. Use "
                f"dim={-(-self.dim // (2 * self.n_heads)) * 2 * self.n_heads}."
            )
        if self.n_heads % self.n_kv_heads:
            legal = [str(heads) for heads in range(1, self.n_heads + 1) if self.n_heads % heads == 0]
            raise UsageError(
                f"n_kv_heads={self.n_kv_heads} does not divide n_heads={self.n_heads} (from LlamaConfig); expected one "
                f"of {', '.join(legal)}. Use n_kv_heads={self.n_heads} for attention without groups."
            )

    @property
    def head_dim(self) -> int:
        """Features of one head."""
        return self.dim // self.n_heads


def _llama_3(dim: int, n_layers: int, n_heads: int, ffn_dim: int, *, tied: bool = False) -> LlamaConfig:
    return LlamaConfig(128256, dim, n_layers, n_heads, 8, ffn_dim, 1e-5, 500000.0, 8192, tied)


# With their numbers of parameters. "debugmodel" is torchtitan's, with a vocabulary of bytes. 1b and 3b have the shapes
# of Llama-3.2, without the stretched positions of its long contexts; the largest those of Llama-3 and Llama-3.1.
LLAMA_SIZES: dict[str, LlamaConfig] = {
    "debug": LlamaConfig(256, 64, 2, 4, 2, ffn_width(64, 16), max_seq_len=512),  # 125,248
    "debugmodel": LlamaConfig(258, 256, 8, 16, 16, ffn_width(256, 256), 1e-5, 500000.0),  # 6,952,192
    "10m": LlamaConfig(4096, 256, 12, 8, 4, ffn_width(256, 64), tied=True),  # 9,902,336
    "125m": LlamaConfig(32000, 768, 16, 12, 4, ffn_width(768, 256), tied=True),  # 125,264,640
    "300m": LlamaConfig(32000, 1024, 24, 16, 8, ffn_width(1024, 256), tied=True),  # 315,933,696
    "1b": _llama_3(2048, 16, 32, ffn_width(2048, 256, 1.5), tied=True),  # 1,235,814,400
    "3b": _llama_3(3072, 28, 24, ffn_width(3072, 256, 1.0), tied=True),  # 3,212,749,824
    "8b": _llama_3(4096, 32, 32, ffn_width(4096, 1024, 1.3)),  # 8,030,261,248
    "70b": _llama_3(8192, 80, 64, ffn_width(8192, 4096, 1.3)),  # 70,553,706,496
    "405b": _llama_3(16384, 126, 128, ffn_width(16384, 4096, 1.2)),  # 405,853,388,800
}
