"""The model of the character GPT on all ranks, its optimizer and its learning rate."""

from __future__ import annotations

from typing import Any

import torch

import ezpz
from ezpz import train
from ezpz.models import GPT, GPTConfig

logger = ezpz.get_logger("ezpz.examples.gpt")


def build(config: Any, sizes: GPTConfig) -> tuple[Any, Any, train.Cost]:
    """Return the model, ready for all ranks, its optimizer, and what one sample costs."""
    deepspeed = config.train.backend == "deepspeed"
    with torch.device(ezpz.get_torch_device() if deepspeed else "meta"):  # on meta it takes no memory before it is cut
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
        model = ezpz.wrap_model(network, config.train.backend.lower(), **how)
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
    """Return AdamW, which lets matrices and embeddings decay, but no norms and biases."""
    how = config.optimizer
    parameters = list(model.parameters())
    decayed = [each for each in parameters if each.dim() >= 2]
    others = [each for each in parameters if each.dim() < 2]
    for kind, group in (("decayed", decayed), ("non-decayed", others)):
        logger.info(
            f"num {kind} parameter tensors: {len(group)}, with {sum(each.numel() for each in group):,} parameters"
        )
    return ezpz.make_optimizer(
        model,
        torch.optim.AdamW,
        params=[{"params": decayed, "weight_decay": how.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=how.learning_rate,
        betas=(how.beta1, how.beta2),
        fused=ezpz.get_torch_device_type() in {"cpu", "cuda"},  # on a CPU a third of the time of torch's default
    )


def make_schedule(optimizer: Any, config: Any) -> Any:
    """Return the learning rate over the steps."""
    how = config.optimizer
    if not how.decay_lr:
        return train.make_schedule(optimizer, "constant", steps=how.lr_decay_iters)
    options = {"steps": how.lr_decay_iters, "warmup": config.train.warmup_iters}
    return train.make_schedule(optimizer, "cosine", **options, min_ratio=how.min_lr / how.learning_rate)
