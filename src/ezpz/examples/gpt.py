"""Train a GPT on the characters of a text, and see at every evaluation what it writes.

    launch python3 -m ezpz.examples.gpt train.backend=DDP train.max_iters=1000 model.batch_size=64 data=shakespeare
    launch -n 2 python3 -m ezpz.examples.gpt                             # two CPU cores, a small one: about a minute
    launch python3 -m ezpz.examples.gpt --preset gpt2                    # the large one, wherever it runs
    python3 -m ezpz.examples.gpt prepare data=shakespeare data.root_path=data

On Shakespeare the loss begins near ln 65 = 4.17 nats per character. Counting single characters reaches 3.35 on held-out
text, counting pairs 2.49: a model that stays above that has not looked at the character before.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ezpz
from ezpz import checkpoint, train
from ezpz.examples.gpt_config import SMALL, configure, options
from ezpz.examples.gpt_data import load, prepare
from ezpz.examples.gpt_evaluation import Evaluation
from ezpz.examples.gpt_parts import build, make_schedule

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence


logger = ezpz.get_logger("ezpz.examples.gpt")


class Best:
    """The lowest validation loss so far, which checkpoints remember."""

    def __init__(self) -> None:
        self.val_loss = math.inf

    def state_dict(self) -> dict[str, float]:
        """Return it for a checkpoint."""
        return {"val_loss": self.val_loss}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take it from a checkpoint."""
        self.val_loss = state["val_loss"]


def evaluate_only(model: Any, evaluation: Evaluation, choice: checkpoint.Choice, *, verify: bool) -> None:
    """Evaluate and sample once, from a checkpoint or from fresh weights; nothing is written."""
    done = 0
    if choice.checkpoint is not None:
        done = checkpoint.Checkpoints(choice.outdir, model=model, verify=verify).load(choice.checkpoint)
    evaluation(model, done)


def run(args: Namespace) -> None:
    """Set up, train, and show what happened."""
    config, how = args.config, args.config.train
    sizes = configure(args)
    ezpz.setup_torch(seed=how.seed)
    resume = "auto" if how.init_from == "resume" and args.resume == "none" else args.resume
    outdir, verify = args.outdir or config.data.out_dir, not args.no_verify
    choice = checkpoint.choose(resume, name=args.name, outdir=outdir, verify=verify)
    train.log_setup(args)
    if args.preset == SMALL and "preset" not in args.typed:
        logger.info(
            "a small GPT, because this is a CPU; the large one: --preset gpt2, one between: --preset shakespeare"
        )

    tokens = load(args)
    evaluation = Evaluation(args, tokens, train.next_token_loss)
    logger.info(
        f"data={tokens.name}: {tokens.origin}; {len(tokens.train):,} tokens to train, {len(tokens.test):,} to test"
    )
    sizes = replace(sizes, vocab_size=tokens.vocabulary)
    model, optimizer, cost = build(config, sizes, draw=choice.checkpoint is None)
    if how.eval_only:
        evaluate_only(model, evaluation, choice, verify=verify)
    else:
        train_on(args, choice, tokens, evaluation, (model, optimizer, cost))


def train_on(
    args: Namespace, choice: checkpoint.Choice, tokens: train.Tokens, evaluation: Evaluation, made: Any
) -> None:
    """Train, evaluate and save in the run's folder."""
    config, how = args.config, args.config.train
    model, optimizer, cost = made
    schedule = make_schedule(optimizer, config)
    size = config.model.batch_size
    batches = train.TokenBatches(tokens.train, config.model.block_size, size, seed=how.seed)
    live: dict[str, Any] = {"model": model, "optimizer": optimizer}
    facts = {
        **tokens.describe(),
        **batches.describe(),
        "parameters": sum(each.numel() for each in model.parameters()),
        "flops_per_sample": cost.flops_per_sample,
    }
    with ezpz.History(args.name, choice.outdir, trackers=trackers(how)) as history, ezpz.profile(args.profile) as prof:
        history.log_config({**facts, **train.as_dict(config)}, **live, scheduler=schedule)
        best = Best()
        saved = None
        if how.backend == "deepspeed":
            logger.info("DeepSpeed keeps its optimizer's state in a form of its own: this run saves no checkpoints")
        else:
            kept = {"keep": how.keep, "asynchronous": how.async_save, "verify": not args.no_verify}
            saved = checkpoint.Checkpoints(history.outdir, **live, schedule=schedule, state={"best": best}, **kept)

        def validate() -> dict[str, float]:
            done = schedule.last_epoch  # it is stepped once per step, and its place is in the checkpoint
            losses = evaluation(model, done)
            better, best.val_loss = losses["val_loss"] < best.val_loss, min(best.val_loss, losses["val_loss"])
            if saved is not None and not how.save_interval and (better or how.always_save_checkpoint):
                history.sync()
                saved.save(done)
            return losses

        whole = train.compile_loss(train.next_token_loss) if how.compile_all else train.next_token_loss
        loop = train.Loop(
            *(model, optimizer, whole, batches),
            steps=how.max_iters,
            batch_size=size,
            accumulate=config.optimizer.gas,
            max_norm=config.optimizer.grad_clip,
            schedule=schedule,
            dtype=how.dtype,
            cost=cost,
            evaluate=validate,
            eval_every=how.eval_interval,
            log_every=how.log_interval,
            checkpoints=saved,
            save_every=how.save_interval if saved is not None else 0,
            resume=choice.checkpoint,
            sync_timing=args.sync_timing,
            on_nan=args.on_nan,
            ended=prof.step,
            row=lambda row: {"step": row.pop("iter"), **row},
        )
        if schedule.last_epoch == 0:
            evaluation(model, 0)
        loop.run(history)
        train.finish_run(history, plots=not args.no_plots, files=prof.files)


def trackers(how: Any) -> list[str] | None:
    """Return the further places for metrics that the settings name."""
    if not how.use_wandb:
        return None
    os.environ.setdefault("WANDB_PROJECT", how.wandb_project)
    return ["wandb"]


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says, or prepare the data, and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["prepare"]:
        return train.run_main(prepare, options(), words[1:])
    return train.run_main(run, options(ezpz.get_torch_device_type()), words)


if __name__ == "__main__":
    sys.exit(main())
