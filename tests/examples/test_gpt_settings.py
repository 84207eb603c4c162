"""What the character GPT is told: its settings, its data and its prompts, and what is wrong with them."""

import json
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ezpz.errors import UsageError
from ezpz.examples import gpt, gpt_config, gpt_data, gpt_evaluation, gpt_parts
from ezpz.models import GPT
from ezpz.train import Tokens, next_token_loss, parse


def arguments(*words):
    return parse(gpt.options(), [*map(str, words)])


PREPARED = """length of dataset in characters: 1,115,394
all the unique characters: \n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz
vocab size: 65
train has 1,003,854 tokens
val has 111,540 tokens
"""


def test_prepare_writes_what_a_run_reads(capsys, tmp_path):
    assert gpt.main(["prepare", "data=shakespeare", f"data.root_path={tmp_path}"]) == 0
    folder = tmp_path / "shakespeare_char"
    assert capsys.readouterr().out == (
        f"{PREPARED}written: {folder / 'train.bin'}, {folder / 'val.bin'}, {folder / 'meta.json'}\n"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["meta.json", "train.bin", "val.bin"]
    ids = np.fromfile(folder / "train.bin", "<u2")
    assert (len(ids), ids[:5].tolist()) == (1_003_854, [18, 47, 56, 57, 58])  # "First"
    shipped = gpt_data.load(arguments(f"data.root_path={tmp_path / 'elsewhere'}"))
    read = gpt_data.load(arguments(f"data.root_path={tmp_path}"))
    assert read.origin == f"file {folder / 'train.bin'}, test part {folder / 'val.bin'}"
    assert (read.vocabulary, read.symbols) == (shipped.vocabulary, shipped.symbols) == (65, shipped.symbols)
    assert torch.equal(read.test.view(torch.int16).long(), shipped.test)


def test_a_text_of_ones_own_is_prepared_under_its_name(capsys, tmp_path):
    (tmp_path / "verse.txt").write_text("ab\u00e9" * 100, encoding="utf-8")
    assert gpt.main(["prepare", f"data={tmp_path / 'verse.txt'}", "--data_dir", str(tmp_path)]) == 0
    assert "vocab size: 3\ntrain has 270 tokens\nval has 30 tokens\n" in capsys.readouterr().out
    tokens = gpt_data.load(arguments("data=verse", "--data_dir", tmp_path))
    assert (tokens.vocabulary, tokens.symbols) == (3, "ab\u00e9")
    assert gpt_data.load(arguments(f"data={tmp_path / 'verse.txt'}", "--data_dir", tmp_path)).symbols == "ab\u00e9"


@pytest.mark.slow
def test_prepare_refuses_what_has_no_characters(capsys, tmp_path):
    assert gpt.main(["prepare", "data=random", f"data.root_path={tmp_path}"]) == 2
    assert "cannot prepare random: it has no characters" in capsys.readouterr().err


def test_a_broken_alphabet_is_named(tmp_path):
    gpt.main(["prepare", f"data.root_path={tmp_path}"])
    for content in ("{", "[]", '{"characters": 3}'):
        (tmp_path / "shakespeare_char" / "meta.json").write_text(content)
        with pytest.raises(UsageError, match=r"cannot use .*/meta\.json: .*expected what `prepare` writes"):
            gpt_data.load(arguments(f"data.root_path={tmp_path}"))


def text(symbols):
    return Tokens("mine", "made", len(symbols or "abc"), torch.zeros(9), torch.zeros(9), symbols)


def test_prompts_are_read_by_the_alphabet_of_the_text():
    tokens = text(" ?Waht")
    assert gpt_data.encode("What?", tokens, origin="default") == [2, 4, 3, 5, 1]
    assert gpt_data.encode("What is", tokens, origin="default") == [2, 4, 3, 5, 0]  # i and s are left out
    with pytest.raises(
        UsageError,
        match=r"train\.prompt='What is' .* has not: 'is' \(from a\.toml, line 3\); expected some of ' \?Waht'",
    ):
        gpt_data.encode("What is", tokens, origin="a.toml, line 3")
    assert gpt_data.encode("What", text(None), origin="the command line") == []
    assert gpt_data.decode([2, 4, 99], tokens) == "Wh\ufffd"


@pytest.mark.slow
def test_presets_are_models_of_the_stated_sizes(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch's meta kernels set it
    source = Path(gpt_config.__file__).read_text(encoding="utf-8")
    for name in gpt_config.PRESETS:
        sizes = gpt_config.configure(arguments("--preset", name, "model.vocab_size=65"))
        with torch.device("meta"):
            assert re.search(rf'"{name}": .*# {GPT(sizes).counted:,}', source), name


def test_groups_choose_as_wordplays_do():
    config = arguments("model=shakespeare", "optimizer=shakespeare", "train=gpt2", "data=shakespeare").config
    assert (config.model.n_layer, config.model.n_embd, config.model.dropout) == (6, 384, 0.2)
    assert (config.optimizer.learning_rate, config.optimizer.beta2) == (1e-3, 0.99)
    assert (config.train.warmup_iters, config.train.eval_interval) == (2000, 2000)
    assert config.data.dataset == "shakespeare_char"
    assert arguments("model.n_layer=3", "model=gpt2").config.model.n_layer == 3  # what is typed overrides it


SEED = json.loads((Path(__file__).parent / "configs" / "wordplay.json").read_text())


def test_every_key_of_wordplay_is_understood():
    words = [
        f"{section}.{key}={json.dumps(value).strip(chr(34))}"
        for section, table in SEED.items()
        for key, value in table.items()
    ]
    config = arguments(*words).config
    found = {section: {key: getattr(getattr(config, section), key) for key in table} for section, table in SEED.items()}
    SEED["train"]["seed"] = 42  # null there
    assert found == SEED


WRONG = {
    "train.max_iter=3": "unknown key train.max_iter (from the command line); expected a key of [train]. "
    "Did you mean train.max_iters?",
    "modle.n_layer=3": "unknown section 'modle'",
    "train.dtype=bf17": "train.dtype='bf17' is wrong (from the command line); expected one of fp32, bf16, fp16. "
    "Did you mean bf16?",
    "train.backend=DPP": "expected one of DDP, FSDP, deepspeed. Did you mean DDP?",
    "train.ngpus=4": "train.ngpus=4 is not supported: `ezpz launch -n 4` says",
    "train.init_from=gpt2-xl": "train.init_from='gpt2-xl' is not supported: weights of GPT-2",
    "train.framework=tensorflow": "ezpz trains with PyTorch",
    "model=gtp2": "unknown model=gtp2 (from the command line); expected one of debug, shakespeare, gpt2",
    "model.n_head=5": "n_head=5 does not divide n_embd=128 (from GPTConfig)",
    "model.dropout=1": "model.dropout=1.0 is wrong",
    "train.backend=deepspeed --resume auto": "train.backend=deepspeed neither saves nor resumes",
    "train.backend=ds train.save_interval=5": "Use train.backend=FSDP.",
    "--preset smal": "unknown --preset 'smal'",
}


def test_what_is_typed_wrong_is_refused_before_anything_starts(subtests, capsys):
    for words, told in WRONG.items():
        with subtests.test(words):
            assert gpt.main(words.split()) == 2
            out, err = capsys.readouterr()
            assert told in err
            assert err.startswith("ezpz.examples.gpt: ")
            assert err.count("\n") == 1
            assert not out


def test_number_formats_have_one_meaning_each():
    for typed, dtype in {"bf16": "bf16", "bfloat16": "bf16", "Float32": "fp32", "half": "fp16"}.items():
        assert arguments(f"train.dtype={typed}").config.train.dtype == dtype


def test_a_constant_rate_neither_warms_up_nor_falls():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    config = arguments("optimizer.decay_lr=false", "train.warmup_iters=100").config
    schedule = gpt_parts.make_schedule(optimizer, config)
    rates = []
    for _ in range(5):
        rates += schedule.get_last_lr()
        optimizer.step()
        schedule.step()
    assert rates == [1.0] * 5


def test_wandb_is_asked_for_by_the_settings_alone(monkeypatch):
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    assert gpt.trackers(SimpleNamespace(use_wandb=False)) is None
    assert gpt.trackers(SimpleNamespace(use_wandb=True, wandb_project="mine")) == ["wandb"]
    assert os.environ.pop("WANDB_PROJECT") == "mine"


def test_a_cpu_trains_the_small_one_unless_a_size_is_asked_for():
    def width(device, *words):
        args = parse(gpt.options(device), [*words])
        return args.preset, args.config.model.n_embd, args.config.train.max_iters

    assert width("cuda") == (None, 768, 1000)
    assert width("cpu") == ("debug", 128, 300)
    assert width("cpu", "data=shakespeare", "train.max_iters=7") == ("debug", 128, 7)
    assert width("cpu", "--preset", "shakespeare") == ("shakespeare", 384, 5000)
    assert width("cpu", "model=gpt2")[:2] == (None, 768)


class Slow(torch.nn.Module):
    """A language model of which one batch takes 5 ms."""

    def forward(self, tokens):
        time.sleep(0.005)
        return torch.zeros(*tokens.shape, 65)


@pytest.mark.parametrize(("limit", "all_of_them"), [("0.1", False), ("0", True)])
def test_an_evaluation_takes_what_its_time_has_room_for(limit, all_of_them, monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(gpt_evaluation, "decode", lambda tokens, _: drawn.append(len(tokens)) or "")
    words = ["model.batch_size=2", "model.block_size=4", "train.eval_iters=30", "train.sample_tokens=50"]
    args = arguments("data=shakespeare", "--preset", "debug", *words, f"train.eval_seconds={limit}", "train.prompt=A")
    evaluation = gpt_evaluation.Evaluation(args, gpt_data.load(args), next_token_loss)
    evaluation(Slow(), 0)
    told = capsys.readouterr().out
    assert ("train.eval_seconds=0 takes all" in told) != all_of_them
    assert (max(drawn) < 51) != all_of_them
    assert ("evaluating before the first step, for at most 0.1 s" in told) != all_of_them
