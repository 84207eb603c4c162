"""Models of transformers under every strategy follow one process, and go from one mesh to another in a checkpoint.

Run by pytest inside every rank of one launch in .test/hugging_face; `test_wrap.py` launches it.
"""

import os
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import transformers
from small_llama import adamw, follows, group_of_ranks, share_of, world_mean
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import ezpz
from ezpz.checkpoint import Checkpoints
from ezpz.dist.tensor_parallel import HUGGING_FACE_NAMES
from ezpz.train import Loop, evaluate

__all__ = ["group_of_ranks"]  # a fixture, which pytest finds by its name here

transformers.logging.set_verbosity_error()
VOCABULARY, LENGTH, BATCH, STEPS, CLIP = 64, 16, 8, 4, 0.25
IGNORED = -100
LLAMA = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT = {**LLAMA, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def half_frozen():
    model = MODELS["tied llama"]()
    for module in (model.model.embed_tokens, model.model.layers[0], model.model.norm):
        module.requires_grad_(False)
    return model


MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **LLAMA)),
    "tied llama": lambda: LlamaForCausalLM(
        LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, tie_word_embeddings=True, **LLAMA)
    ),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **GPT2)),
    "half frozen llama": half_frozen,
    "bert": lambda: BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, **BERT)),
}
PLAIN = {
    "ddp": {"strategy": "ddp"},
    "fsdp": {"strategy": "fsdp"},
    "zero1": {"strategy": "zero1"},
    "hsdp": {"strategy": "hsdp"},
    "fsdp, recompute": {"strategy": "fsdp", "activation_checkpoint": "full"},
    "ddp, recompute by operation": {"strategy": "ddp", "activation_checkpoint": "op"},
    "ddp, recompute of transformers": {"strategy": "ddp", "theirs": True},
    "fsdp, recompute of transformers": {"strategy": "fsdp", "theirs": True},
}
FROZEN = ("ddp", "fsdp", "zero1", "plan")
plan_of = partial(ezpz.llama_plan, names=HUGGING_FACE_NAMES)
CUT = {
    "plan": {"tp_plan": plan_of},
    "plan, recompute": {"tp_plan": plan_of, "activation_checkpoint": "full"},
    "plan, recompute by operation": {"tp_plan": plan_of, "activation_checkpoint": "op"},
    "plan, recompute of transformers": {"tp_plan": plan_of, "theirs": True},
    "plan, whole sequences": {"tp_plan": partial(plan_of, sequence_parallel=False)},
    "plan, loss parallel": {"tp_plan": partial(plan_of, loss_parallel=True)},
    "plan, loss parallel, whole sequences": {
        "tp_plan": partial(plan_of, loss_parallel=True, sequence_parallel=False),
    },
    "the model's own plan": {},
}
CASES = [
    *((name, how) for name in ("llama", "tied llama", "gpt2", "bert") for how in PLAIN),
    *((name, how) for name in ("llama", "tied llama") for how in CUT),
    *(("half frozen llama", how) for how in FROZEN),
]


def build(name):
    ezpz.seed_everything(11)
    return MODELS[name]().train()


def batch_of(step):
    """Texts of different lengths: padded, with labels of -100 there, as transformers' collators make them."""
    generator = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(1, VOCABULARY, (BATCH, LENGTH), generator=generator)
    seen = torch.arange(LENGTH) < torch.randint(4, LENGTH + 1, (BATCH, 1), generator=generator)
    return {
        "input_ids": torch.where(seen, tokens, 0),
        "attention_mask": seen.long(),
        "labels": torch.where(seen, tokens, IGNORED),
    }


def sum_of(model, batch):
    """Sum of the losses, and how many tokens that is."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    labels = batch["labels"]
    if "Bert" not in type(getattr(model, "module", model)).__name__:  # the others tell the next token
        logits, labels = logits[:, :-1], labels[:, 1:]
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"), (labels != IGNORED).sum()


def alone(name):
    model = build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        loss, count = sum_of(model, batch_of(step))
        (loss / count).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        yield (loss / count).item(), norm.item()


class Rows(list):
    def update(self, row, **_):
        self.append((row["loss"], row["grad_norm"]))


def part_of(batch, mesh):
    part, parts = share_of(mesh)
    return {name: value.chunk(parts)[part] for name, value in batch.items()}


def by_loop(model, mesh):
    rows, (_, parts) = Rows(), share_of(mesh)
    Loop(
        *(model, adamw(model), sum_of, lambda position: part_of(batch_of(position), mesh)),
        steps=STEPS,
        batch_size=BATCH // parts,
        max_norm=CLIP,
        log_every=1000,
    ).run(rows)
    return rows


def with_cut_logits(model, mesh):
    optimizer = adamw(model)
    for step in range(STEPS):
        with ezpz.loss_parallel():
            loss, count = sum_of(model, part_of(batch_of(step), mesh))
            loss = loss / count
            loss.backward()
        norm = ezpz.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        yield world_mean(loss.full_tensor()), float(norm)


@pytest.mark.parametrize(("name", "how"), CASES)
def test_it_follows_one_process(name, how):
    wishes = {"strategy": "fsdp", **(PLAIN | CUT)[how]}
    mesh = ezpz.init_mesh(tp=2 if how in CUT else 1, dp_replicate=2 if wishes["strategy"] == "hsdp" else 1)
    model = build(name)
    if wishes.pop("theirs", False):
        model.gradient_checkpointing_enable()
    if "tp_plan" in wishes:
        wishes["tp_plan"] = wishes["tp_plan"]()
    model = ezpz.wrap_model(model, mesh=mesh, **wishes)
    follows((with_cut_logits if "loss parallel" in how else by_loop)(model, mesh), alone(name))


def test_a_sequence_that_cannot_be_cut_is_refused():
    mesh = ezpz.init_mesh(tp=2)
    model = ezpz.wrap_model(build("llama"), "fsdp", mesh, tp_plan=plan_of())
    with pytest.raises(ezpz.errors.UsageError, match="sequence=15 cannot be cut into tp=2"):
        model(input_ids=torch.ones(2, 15, dtype=torch.long))


def run_of(how, folder):
    mesh = ezpz.init_mesh(tp=2 if how in CUT else 1)
    wishes = {"tp_plan": plan_of()} if how in CUT else {}
    model = ezpz.wrap_model(build("tied llama"), "fsdp" if how in CUT else how, mesh, **wishes)
    optimizer = adamw(model)
    return model, optimizer, Checkpoints(folder, model=model, optimizer=optimizer), mesh


def evaluated(model, mesh):
    batches = [part_of(batch_of(100 + number), mesh) for number in range(2)]
    # Ranks of one replica hold the same samples, and every sample counts once on each: the mean is that of one replica.
    return evaluate(model, batches, sum_of)["loss"]


@pytest.mark.parametrize(("saved", "loaded"), [("fsdp", "plan"), ("plan", "ddp"), ("plan", "fsdp")])
def test_a_tied_llama_goes_from_one_mesh_to_another(saved, loaded):
    folder = Path(os.environ["FOLDER_OF_TEST"]) / f"{saved}-{loaded}"

    def train(model, optimizer, mesh):
        loss, count = sum_of(model, part_of(batch_of(7), mesh))
        ezpz.scale_loss(loss, count, mesh).backward()
        norm = ezpz.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return float(norm)

    model, optimizer, checkpoints, mesh = run_of(saved, folder)
    train(model, optimizer, mesh)
    checkpoints.save(1, wait=True)
    before = evaluated(model, mesh), train(model, optimizer, mesh), evaluated(model, mesh)
    model, optimizer, checkpoints, mesh = run_of(loaded, folder)
    dist.barrier()
    assert evaluated(model, mesh) != pytest.approx(before[0], abs=1e-3)
    assert checkpoints.load(next((folder / "checkpoints").glob("step-*"))) == 1
    after = evaluated(model, mesh), train(model, optimizer, mesh), evaluated(model, mesh)
    assert after == pytest.approx(before, abs=1e-5)
    plain = getattr(model, "module", model)
    assert plain.lm_head.weight is plain.model.embed_tokens.weight
