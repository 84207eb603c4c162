"""Evaluate the character GPT: losses on both parts of the text, and a sample."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch

import ezpz
from ezpz import train
from ezpz.examples.gpt_data import decode, encode

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

logger = ezpz.get_logger("ezpz.examples.gpt")

_LOSSES = 0.6  # the share of the time of an evaluation that is for the losses; the rest is for the sample


class Evaluation:
    """Losses and samples of a model; every rank makes it and calls it."""

    def __init__(self, args: Namespace, tokens: train.Tokens, compute_loss: Callable[[Any, Any], Any]) -> None:
        """Choose the sequences to evaluate, and read the prompt.

        Args:
            args: From the command line.
            tokens: The data.
            compute_loss: What the loop trains with.

        Raises:
            UsageError: The prompt has characters that the text has not, or a part of the data is shorter than a
                sequence.
        """
        self._config, self._tokens, self._compute_loss = args.config, tokens, compute_loss
        how = args.config.train
        self._parts = self._chosen(how.eval_iters)
        self._is_timed = not how.eval_seconds
        origin = args.origins["train.prompt"]
        self._prompt = encode(how.prompt, tokens, origin=origin) if how.sample_tokens and how.prompt else []

    def _chosen(self, batches: int) -> dict[str, tuple[Any, Any]]:
        """Return for each part its sequences, and which of them this rank evaluates."""
        size = self._config.model
        parts = {"train_loss": self._tokens.train, "val_loss": self._tokens.test}
        return {name: _spread(part, size.block_size, size.batch_size, batches) for name, part in parts.items()}

    def __call__(self, model: Any, done: int) -> dict[str, float]:
        """Return ``train_loss`` and ``val_loss``, and log them and what the model writes.

        Args:
            model: As `ezpz.wrap_model` returned it.
            done: Steps done; with the run's seed it is the seed of the sample.
        """
        if not self._is_timed:
            self._fit_in_time(model)
        losses = {name: self._loss(model, *part) for name, part in self._parts.items()}
        logger.info(f"after {done} steps: {' '.join(f'{name}={loss:.6f}' for name, loss in losses.items())}")
        self._sample(model, done)
        return losses

    def _fit_in_time(self, model: Any) -> None:
        """Take as many batches as `train.eval_seconds` has room for, by the time of one; all ranks agree."""
        self._is_timed = True
        how = self._config.train
        logger.info(f"evaluating before the first step, for at most {how.eval_seconds:g} s (train.eval_seconds)")
        one = {name: (sequences, mine[:1]) for name, (sequences, mine) in self._parts.items()}
        self._loss(model, *one["val_loss"])  # the first pass pays for what is done once
        begin = time.perf_counter()
        self._loss(model, *one["val_loss"])
        ezpz.synchronize()
        seconds = ezpz.all_reduce(time.perf_counter() - begin, "max")
        batches = max(1, int(_LOSSES * how.eval_seconds / len(self._parts) / max(seconds, 1e-9)))
        if batches < how.eval_iters:
            self._parts = self._chosen(batches)
            logger.info(
                f"a batch takes {seconds:.3g} s: every evaluation takes {batches} of {how.eval_iters} batches of each "
                "part; train.eval_seconds=0 takes all"
            )

    def _loss(self, model: Any, sequences: train.TokenBatches, mine: Any) -> float:
        """Return the mean over sequences; ``mine`` are indices, so that one batch at a time is in memory."""
        means = train.evaluate(model, mine, self._compute_loss, pick=sequences.take)
        return means.get("loss", math.nan)  # a simulated rank may have no samples

    def _sample(self, model: Any, done: int) -> None:
        if not self._prompt:
            return
        how = self._config.train
        drawn = train.sample_tokens(
            model,
            self._prompt,
            how.sample_tokens,
            context=self._config.model.block_size,
            temperature=how.temperature,
            top_k=how.top_k,
            seed=how.seed + done,
            seconds=(1 - _LOSSES) * how.eval_seconds,
        )
        logger.info(f"['prompt']: {decode(self._prompt, self._tokens)!r}")
        logger.info(f"['response']:\n{decode(self._prompt + drawn, self._tokens)}")


def _spread(part: torch.Tensor, length: int, batch_size: int, batches: int) -> tuple[Any, Any]:
    """Return the sequences of a part, and which of them this rank evaluates by batches: evenly spread over the part."""
    sequences = train.TokenBatches(part, length, batch_size)
    count = min(len(sequences), batches * batch_size * ezpz.get_world_size())
    chosen = torch.arange(count) * len(sequences) // count
    mine = train.shard_indices(count)
    return sequences, chosen[mine].split(batch_size) if len(mine) else ()
