"""Let a language model continue a prompt: the same tokens for the same seed, on every rank."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


_ASK = 8  # tokens from one look at the time to the next


def sample_tokens(
    model: Any,
    prompt: Sequence[int],
    count: int,
    *,
    context: int,
    temperature: float = 0.8,
    top_k: int = 200,
    seed: int,
    seconds: float = 0.0,
) -> list[int]:
    """Return tokens that a model puts after a prompt; every rank must call it, and all get the same.

    Each token is drawn on the CPU from a generator of its own, so that the random numbers of the training stay where
    they are. Dropout is off meanwhile. Nothing is kept from one token to the next: every one costs a forward pass over
    the context.

    Args:
        model: As `ezpz.wrap_model` returned it; from tokens ``(1, length)`` of int64 to logits ``(1, length,
            vocabulary)``.
        prompt: At least one token, the same on all ranks.
        count: How many tokens to draw.
        context: The most tokens that the model can look at; of longer texts it sees the end.
        temperature: What logits are divided by; 0 takes the likeliest token every time.
        top_k: Draw among so many likeliest tokens; 0 among all.
        seed: Of the draws.
        seconds: Draw fewer tokens where ``count`` would take longer, at least one; ranks agree on that every
            few tokens. 0 draws all.

    Returns:
        The drawn tokens, without the prompt.

    Raises:
        UsageError: The prompt is empty, or a number is out of range.
    """
    import torch

    from ezpz.dist import all_reduce, broadcast
    from ezpz.dist.device import device as own_device

    _check(prompt, count, context, temperature, top_k)
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            begin = perf_counter()
            for drawn in range(count):
                if seconds and (drawn == 1 or (drawn and drawn % _ASK == 0)):
                    taken = all_reduce(perf_counter() - begin, "max")
                    if taken * (1 + _ASK / drawn) > seconds:  # the next ones would end too late
                        break
                seen = torch.tensor([tokens[-context:]], device=own_device())
                tokens.append(_draw(_last(model(seen)), temperature, top_k, generator))
    finally:
        model.train(was_training)
    return broadcast(tokens[len(prompt) :])  # devices that round in different ways may have drawn apart


def _last(logits: Any) -> torch.Tensor:
    """Return the logits after the last position, ``(vocabulary,)`` float32 on the CPU, also where ranks share them."""
    whole = logits.full_tensor() if hasattr(logits, "full_tensor") else logits
    last: torch.Tensor = whole[0, -1].float().cpu()
    return last


def _draw(logits: torch.Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    import torch

    if temperature == 0:
        return int(logits.argmax())
    likeliest, tokens = (logits / temperature).topk(min(top_k or len(logits), len(logits)))
    return int(tokens[torch.multinomial(likeliest.softmax(-1), 1, generator=generator)])


def _check(prompt: Sequence[int], count: int, context: int, temperature: float, top_k: int) -> None:
    if not prompt:
        raise UsageError("an empty prompt (from sample_tokens); expected at least one token to continue.")
    least = {"count": (count, 0), "context": (context, 1), "temperature": (temperature, 0), "top_k": (top_k, 0)}
    for name, (value, smallest) in least.items():
        if not value >= smallest:
            raise UsageError(f"unusable {name}={value} (from sample_tokens); expected at least {smallest}.")
