"""`make gpu` itself: what it does without a GPU, and its whole way on a CPU in the place of one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
GPT_OF_NANOGPT = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class GPTConfig:
    n_layer: int; n_head: int; n_embd: int; block_size: int; vocab_size: int; dropout: float; bias: bool

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        return torch.optim.AdamW(self.parameters(), lr=learning_rate, betas=betas, weight_decay=weight_decay)

    def forward(self, idx, targets):
        logits = self.wte(idx) @ self.wte.weight.T
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
"""


def run(tmp_path, *words, **env):
    clean = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "LANG": "C.UTF-8",
        "COLUMNS": "200",
    }
    line = [sys.executable, str(ROOT / "bench/gpu.py"), "--out", str(tmp_path / "out"), *words]
    return subprocess.run(line, cwd=tmp_path, env={**clean, **env}, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path):
    result = run(tmp_path, CUDA_VISIBLE_DEVICES="")
    assert (result.returncode, result.stdout) == (
        0,
        "gpu: nothing measured and nothing written: torch sees no GPU here\n",
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_unknown_case_and_a_missing_folder_are_refused(tmp_path):
    assert "unknown cases ['gtp2']" in run(tmp_path, "--only", "gtp2").stderr
    assert "no folder nowhere (from --peers)" in run(tmp_path, "--peers", "nowhere").stderr


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(1800)  # it runs all tests of `test_on_a_gpu.py`
def test_the_whole_way_on_a_stand_in(tmp_path):
    peer = tmp_path / "peers" / "nanoGPT"
    peer.mkdir(parents=True)
    (peer / "model.py").write_text(GPT_OF_NANOGPT)
    result = run(
        tmp_path, "--stand-in", "--minutes", "0.2", "--only", "gpt2,llama,vit", "--apart", "--peers", str(peer.parent)
    )
    assert result.returncode == 0, result.stdout + result.stderr
    told = json.loads((tmp_path / "out/gpu.json").read_text())
    assert told["stand_in"] is True
    sides = [tuple(side["side"] for side in each["sides"]) for each in told["pairs"]]
    ours = "ezpz.train.Loop"
    assert sides[:2] == [(ours, "plain torch"), (ours, "nanoGPT")]
    assert len([each for each in sides if each == (ours, "plain torch")]) == 3
    for each in told["pairs"]:
        assert each["low"] <= each["ratio"] <= each["high"]
        assert all(side["rate"] > 0 and side["first_step_s"] > 0 and side["steps"] > 0 for side in each["sides"])
    assert any("torchtitan is missing (no folder torchtitan in " in each for each in told["missing"])
    assert len(told["tests"]) >= 10
    assert {each["outcome"].split(":")[0] for each in told["tests"]} == {"passed", "skipped"}
    page = (tmp_path / "out/gpu.md").read_text()
    assert result.stdout.endswith(page)
    assert "| GPT-2 124M, 12 x 1,024 | nanoGPT |" in page


@pytest.mark.slow
@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_counting_without_a_card_needs_a_torch_with_cuda(tmp_path):
    line = [sys.executable, str(ROOT / "bench/gpu_dry.py")]
    result = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "has no CUDA" in result.stderr
    assert "expected torch with CUDA, and Triton" in result.stderr
    empty = subprocess.run([*line, "--run"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert empty.returncode == 2
    assert "--run has no program" in empty.stderr
    wrong = subprocess.run([*line, "--only", "bert"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "unknown cases ['bert']" in wrong.stderr
