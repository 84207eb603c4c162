"""A GPT-2-style language model: layer norms, learned positions, fused queries, keys and values, output tied to the
embedding.

    tokens (B, T) → embeddings + positions (B, T, n_embd) → blocks of attention and MLP → norm → logits (B, T,
    vocabulary)

The architecture is that of Radford et al. 2019, "Language Models are Unsupervised Multitask Learners". Names of modules
are those of OpenAI's released weights as Hugging Face's ``GPT2LMHeadModel`` spells them (linear weights here are
``(out, in)``, there ``(in, out)``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import gelu, relu, scaled_dot_product_attention, silu

from ezpz.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"gelu": gelu, "relu": relu, "silu": silu}


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a `GPT`; the defaults have 85,003,776 parameters without positions, 85,790,208 with them.

    Args:
        vocab_size: Number of different tokens.
        n_layer: Number of blocks.
        n_head: Heads of attention, a divisor of n_embd.
        n_embd: Width of the model in features.
        block_size: Longest sequence, the number of learned positions.
        dropout: Part of the features that is zeroed after the embeddings, in the attention, and at the end of each
            branch.
        bias: Let linear layers and norms have biases, as GPT-2 does.
        activation: Of the MLP: gelu, relu or silu.

    Raises:
        UsageError: A size is not positive, the heads do not fit the width, or the activation is unknown.
    """

    vocab_size: int = 65
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    block_size: int = 1024
    dropout: float = 0.0
    bias: bool = False
    activation: str = "gelu"

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_layer", "n_head", "n_embd", "block_size"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"unusable {name}={getattr(self, name)} (from GPTConfig); expected a whole number from 1 on."
                )
        if self.n_embd % self.n_head:
            legal = [heads for heads in range(1, self.n_embd + 1) if self.n_embd % heads == 0]
            raise UsageError(
                f"n_head={self.n_head} does not divide n_embd={self.n_embd} (from GPTConfig); expected a divisor. "
                f"Use n_head={min(legal, key=lambda heads: abs(heads - self.n_head))}."
            )
        if not 0.0 <= self.dropout < 1.0:
            raise UsageError(
                f"unusable dropout={self.dropout} (from GPTConfig); expected 0 to less than 1. Use dropout=0.2."
            )
        if self.activation.lower() not in _ACTIVATIONS:
            raise UsageError(
                f"unknown activation {self.activation!r} (from GPTConfig); expected one of {', '.join(_ACTIVATIONS)}."
                f"{did_you_mean(self.activation.lower(), _ACTIVATIONS, otherwise=' Use gelu, as GPT-2 does.')}"
            )

    @property
    def head_dim(self) -> int:
        """Features of one head."""
        return self.n_embd // self.n_head


class Attention(nn.Module):  # type: ignore[misc]  # torch is Any to the type check
    """Every position looks at itself and those before it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.head_dim, self.dropout = config.head_dim, config.dropout
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``(batch, length, n_embd)`` for ``x`` of the same shape."""
        batch, length, _ = x.shape
        parts = self.c_attn(x).chunk(3, dim=-1)
        q, k, v = (part.view(batch, length, -1, self.head_dim).transpose(1, 2) for part in parts)
        dropped = self.dropout if self.training else 0.0
        y = scaled_dot_product_attention(q, k, v, dropout_p=dropped, is_causal=True)
        out: torch.Tensor = self.resid_dropout(self.c_proj(y.transpose(1, 2).reshape(batch, length, -1)))
        return out


class MLP(nn.Module):  # type: ignore[misc]  # torch is Any to the type check
    """Two linear layers, four times as wide between them, for every position by itself."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.activation = _ACTIVATIONS[config.activation.lower()]
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``(batch, length, n_embd)`` for ``x`` of the same shape."""
        out: torch.Tensor = self.dropout(self.c_proj(self.activation(self.c_fc(x))))
        return out


class Block(nn.Module):  # type: ignore[misc]  # torch is Any to the type check
    """Attention and MLP, each on a normalised input and added to what came in."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``(batch, length, n_embd)`` for ``x`` of the same shape."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):  # type: ignore[misc]  # torch is Any to the type check
    """Tokens to logits of the next token; take the loss with ``cross_entropy``."""

    def __init__(self, config: GPTConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or GPTConfig()
        device = torch.get_default_device()
        with torch.device("meta"):  # numbers are drawn once, by init_weights, so that a model filled later has the same
            parts: dict[str, nn.Module] = {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "drop": nn.Dropout(config.dropout),
                "h": nn.ModuleList(Block(config) for _ in range(config.n_layer)),
                "ln_f": nn.LayerNorm(config.n_embd, bias=config.bias),
            }
            self.transformer = nn.ModuleDict(parts)
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.to_empty(device=device)
        self.lm_head.weight = self.transformer.wte.weight
        self.init_weights()

    def init_weights(self) -> None:
        """Draw the weights: normal with deviation 0.02, but ``0.02 / sqrt(2 * n_layer)`` where a branch ends in the sum
        over layers.

        Biases are 0, norms 1. So does GPT-2, whose first loss is therefore near ``ln(vocab_size)``.
        """
        ends = 0.02 * (2 * self.config.n_layer) ** -0.5
        for name, module in self.transformer.named_modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, (nn.Embedding, nn.Linear)):
                nn.init.normal_(module.weight, std=ends if name.endswith("c_proj") else 0.02)
                if getattr(module, "bias", None) is not None:
                    nn.init.zeros_(module.bias)

    @property
    def counted(self) -> int:
        """Number of parameters without the table of positions, as GPT-2's sizes count; shards count whole."""
        positions = self.transformer.wpe.weight
        return sum(parameter.numel() for parameter in self.parameters() if parameter is not positions)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits ``(batch, length, vocab_size)`` for tokens ``(batch, length)`` of int64.

        Raises:
            UsageError: The sequence is longer than block_size.
        """
        length, longest = tokens.shape[1], self.config.block_size
        if length > longest:
            raise UsageError(
                f"a sequence of {length} tokens is longer than block_size={longest} (from GPTConfig); expected at most "
                f"{longest}. Cut the sequence, or make the model with block_size={length}."
            )
        places = torch.arange(length, device=tokens.device)
        x = self.transformer.drop(self.transformer.wte(tokens) + self.transformer.wpe(places))
        for block in self.transformer.h:
            x = block(x)
        logits: torch.Tensor = self.lm_head(self.transformer.ln_f(x))
        return logits
