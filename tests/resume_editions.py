"""Resume the recorded runs of earlier editions, each for two steps, in one process; print the steps of each.

Run by `test_editions.py`, with the folder of the unpacked runs as its argument; not collected by itself.
"""

import json
import sys
from pathlib import Path

import ezpz
from ezpz.examples import fsdp, fsdp_tp, gpt, gpt_config, llm, llm_config, vit
from ezpz.track import read_journal
from ezpz.train import parse

HERE = Path(sys.argv[1])
SIZES = "--n_layers 1 --dim 16 --n_heads 2 --n_kv_heads 2 --ffn_dim 32 --vocab_size 64 --seq_len 16 --eval_samples 4"
CHARACTERS = "model.n_layer=1 model.n_head=1 model.n_embd=16 model.batch_size=4 model.block_size=16 train.dtype=fp32"
WORDS = {
    "fsdp": (fsdp, fsdp, "--dataset digits --epochs 2 --batch_size 128"),
    # What these two trained on was made, and is made no more.
    "fsdp_tp": (fsdp_tp, fsdp_tp, f"{SIZES} --dataset random --batch_size 4 --max_iters 8"),
    "vit": (
        vit,
        vit,
        (
            "--preset debug --depth 1 --n_heads 1 --head_dim 16 --batch_size 64 --max_iters 8 "
            "--samples 256 --eval_samples 16"
        ),
    ),
    "gpt": (gpt, gpt_config, f"{CHARACTERS} train.max_iters=8 train.eval_interval=8 train.eval_iters=1 train.prompt="),
    "llm": (
        llm,
        llm_config,
        (
            "--preset debug training.dataset=random model.vocab_size=32 --training.steps 8 --training.seq_len 32 "
            "--training.batch_size 4"
        ),
    ),
}

ezpz.setup_torch()
steps = {}
for name in sorted(path.name for path in HERE.iterdir()):
    trainer, options, words = WORDS[name.removeprefix("second-")]
    ezpz.init_mesh()
    folder = HERE / f"resumed-{name}"
    typed = [*words.split(), "--no_plots", "--outdir", str(folder), "--resume", str(HERE / name)]
    trainer.run(parse(options.options(), typed))
    steps[name] = [row["step"] for row in read_journal(folder)]
ezpz.cleanup()
(HERE / "steps.json").write_text(json.dumps(steps))
