"""A `Loop` beside transformers' Trainer on padded batches; `test_counting.py` runs this in .test/hugging_face."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import ezpz
from ezpz.train import Loop

STEPS, ACCUMULATE, ROWS, LENGTH, LR, CLIP = 50, 2, 4, 24, 3e-3, 1.0
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def model_of():
    torch.manual_seed(5)
    return LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=LENGTH))


def rows():
    """Padded texts that can be learned: the next token is the one before and 1, 2 or 3."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for _ in range(STEPS * ACCUMULATE * ROWS):
        length = int(torch.randint(2, LENGTH + 1, (), generator=generator))
        start, by = (int(torch.randint(1, most, (), generator=generator)) for most in (60, 4))
        tokens = (start + by * torch.arange(LENGTH)) % 63 + 1
        seen = torch.arange(LENGTH) < length
        made.append(
            {
                "input_ids": torch.where(seen, tokens, 0),
                "attention_mask": seen.long(),
                "labels": torch.where(seen, tokens, -100),
            }
        )
    return made


def collate(some):
    return {name: torch.stack([row[name] for row in some]) for name in some[0]}


def by_trainer(folder):
    losses = []

    class Recording(Trainer):
        def training_step(self, *args, **more):
            loss = super().training_step(*args, **more)
            losses.append(float(loss))
            return loss

        def _get_train_sampler(self, *_, **__):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    how = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=ACCUMULATE,
        learning_rate=LR,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=CLIP,
        optim="adamw_torch",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    Recording(model=model_of(), args=how, train_dataset=rows(), data_collator=collate).train()
    return [sum(losses[at : at + ACCUMULATE]) for at in range(0, len(losses), ACCUMULATE)]


class Rows(list):
    def update(self, row, **_):
        self.append(row)

    def rates_count(self, _):
        pass


def by_loop():
    def compute_loss(model, batch):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        targets = batch["labels"][:, 1:]
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return loss, (targets != -100).sum()

    ezpz.setup_torch(seed=5)
    model = ezpz.wrap_model(model_of(), "ddp", dtype="fp32")
    optimizer = ezpz.make_optimizer(model, torch.optim.AdamW, lr=LR, weight_decay=0.0)
    every = rows()
    loop = Loop(
        *(model, optimizer, compute_loss, lambda position: collate(every[position * ROWS : (position + 1) * ROWS])),
        steps=STEPS,
        batch_size=ROWS,
        accumulate=ACCUMULATE,
        max_norm=CLIP,
    )
    recorded = Rows()
    loop.run(recorded)
    return [row["loss"] for row in recorded]


def test_losses_are_those_of_transformers(tmp_path):
    theirs = by_trainer(tmp_path)
    ours = by_loop()
    assert len(ours) == STEPS
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert ours[-1] < ours[0] - 1.0
