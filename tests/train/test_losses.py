"""The loss of the trainers of language models, and model and loss compiled as one graph."""

import functools
import sys

import pytest
import torch
from torch.nn.functional import cross_entropy

import ezpz
from ezpz.errors import UsageError
from ezpz.examples import gpt, gpt_config, vit
from ezpz.models import GPT, GPTConfig
from ezpz.train import Loop, compile_loss, next_token_loss, parse

SIZES = GPTConfig(vocab_size=50, n_layer=2, n_head=2, n_embd=16, block_size=8)


@pytest.fixture(autouse=True)
def _compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch writes it when it imports its compiler


def batch_of(position):
    tokens = torch.randint(50, (3, 9), generator=torch.Generator().manual_seed(position))
    return tokens[:, :-1], tokens[:, 1:]


def losses(compute_loss):
    torch.manual_seed(1)
    model, rows = GPT(SIZES), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    class Rows:
        def update(self, row, **_):
            return row

    keep = lambda row: rows.append(row["loss"]) or row  # noqa: E731  # one expression
    Loop(model, optimizer, compute_loss, batch_of, steps=4, batch_size=3, row=keep).run(Rows())
    return rows


def test_the_loss_is_the_sum_over_tokens_and_their_number():
    model = GPT(SIZES)
    tokens, following = batch_of(0)
    loss, count = next_token_loss(model, (tokens, following))
    assert count == 24
    assert float(loss / count) == pytest.approx(float(cross_entropy(model(tokens).transpose(1, 2), following)))


@pytest.mark.slow
def test_one_graph_learns_as_the_plain_model_does(monkeypatch):
    """Torch's backend without code generation: the graph is captured and differentiated as with any other."""
    monkeypatch.setenv("CXX", sys.executable)  # any program: nothing is built
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager", fullgraph=True))
    compiled = []

    def loss_of(model, batch):
        compiled.append(torch.compiler.is_compiling())
        return next_token_loss(model, batch)

    found = losses(compile_loss(loss_of))
    assert compiled
    assert all(compiled)
    assert found == pytest.approx(losses(next_token_loss), rel=1e-4)


def test_without_a_compiler_it_warns_and_goes_on(monkeypatch, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert compile_loss(next_token_loss) is next_token_loss
    assert "the loss cannot be compiled here: no C++ compiler (no-such-compiler)" in capsys.readouterr().out


def test_a_model_that_is_cut_is_refused():
    with pytest.raises(UsageError, match=r"--strategy fsdp cuts it; expected ddp or zero1"):
        vit.run(parse(vit.options(), ["--preset", "debug", "--compile_all"]))
    args = parse(gpt.options(), ["--preset", "debug", "train.compile_all=true", "train.backend=FSDP"])
    with pytest.raises(UsageError, match=r"train\.backend=FSDP cuts it"):
        gpt_config.configure(args)


def test_they_are_public():
    assert ezpz.train.compile_loss is compile_loss
