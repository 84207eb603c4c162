"""The model of the character GPT on all ranks, its optimizer and its learning rate."""

from __future__ import annotations

from typing import Any

import torch

import ezpz
from ezpz import train
from ezpz.models import GPT, GPTConfig

logger = ezpz.get_logger("ezpz.examples.gpt")


def build(config: Any, sizes: GPTConfig, *, draw: bool) -> tuple[Any, Any, train.Cost]:
    """Return the model, ready for all ranks, its optimizer, and what one sample costs.

    Its weights are not drawn before a load.
    """
    deepspeed = config.train.backend == "deepspeed"
    with torch.device(ezpz.device() if deepspeed else "meta"):  # on meta it takes no memory before it is cut
        network = GPT(sizes)
    logger.info(f"model\n{train.summarize(network)}")
    logger.info(f"parameters={network.counted:,} without the table of positions")
    per_token = train.transformer_flops(network.counted, sizes.n_layer, sizes.n_head, sizes.head_dim, sizes.block_size)
    cost = train.Cost(per_token * sizes.block_size, tokens_per_sample=sizes.block_size, dtype=config.train.dtype)
    if deepspeed:
        optimizer = make_optimizer(network, config)
        model = by_deepspeed(network, optimizer, config)
    else:
        how = {name: getattr(config.train, name) for name in ("dtype", "compile", "activation_checkpoint")}
        model = ezpz.wrap_model(network, config.train.backend.lower(), draw=draw, **how)
        optimizer = make_optimizer(model, config)
    ezpz.seed_dropout(config.train.seed)
    return model, optimizer, cost


def by_deepspeed(network: Any, optimizer: Any, config: Any) -> Any:
    """Return DeepSpeed's engine, which clips and accumulates itself: as its file says, or as the settings do."""
    how: dict[str, Any] = {"config": config.train.ds_config_path}
    if config.train.ds_config_path is None:
        how = {"accumulation": config.optimizer.gas, "clip": config.optimizer.grad_clip}
        how |= {"micro_batch_size": config.model.batch_size, "dtype": config.train.dtype}
    return ezpz.wrap_model(network, "deepspeed", optimizer=optimizer, **how)


def make_optimizer(model: Any, config: Any) -> Any:
    """Return AdamW, which lets matrices and embeddings decay, but no norms, biases and positions."""
    how = config.optimizer
    optimizer = ezpz.make_adamw(
        model, lr=how.learning_rate, weight_decay=how.weight_decay, betas=(how.beta1, how.beta2)
    )
    for group in optimizer.param_groups:
        kind = "decayed" if group["weight_decay"] else "non-decayed"
        count = sum(each.numel() for each in group["params"])
        logger.info(f"num {kind} parameter tensors: {len(group['params'])}, with {count:,} parameters")
    return optimizer


def make_schedule(optimizer: Any, config: Any) -> Any:
    """Return the learning rate over the steps."""
    how = config.optimizer
    if not how.decay_lr:
        return train.make_schedule(optimizer, "constant", steps=how.lr_decay_iters)
    options = {"steps": how.lr_decay_iters, "warmup": config.train.warmup_iters}
    return train.make_schedule(optimizer, "cosine", **options, min_ratio=how.min_lr / how.learning_rate)
