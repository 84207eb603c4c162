"""``python3 -m ezpz framework=pytorch backend=…``: the configured run."""

import os
import sys
from unittest import mock

import pytest

from ezpz.cli import smoke

RUN = [sys.executable, "-m", "ezpz"]


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["DDP", "FSDP"])
def test_it_trains_the_smoke_model_under_that_backend(run_cli, clean_env, backend, tmp_path):
    words = ["framework=pytorch", f"backend={backend}", "train_iters=30", "print_freq=1", "no_plots=true"]
    launch = [sys.executable, "-m", "ezpz.launch", "-n", "2"]
    done = run_cli([*launch, *RUN, *words, f"outdir={tmp_path}/out"], clean_env, 120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f'"backend": "{backend}"' in done.stdout
    assert f"strategy={backend.lower()}" in done.stdout
    lines = [line for line in done.stdout.splitlines() if "iter=" in line]
    losses = [float(line.split("loss=")[1].split()[0]) for line in lines]
    assert len(losses) == 30
    assert losses[-1] < 0.8 * losses[0]


REFUSED = [
    (["framework=tensorflow"], "no framework 'tensorflow'"),
    (["backend=horovod"], "no Horovod"),
    (["backend=gloo"], "TORCH_BACKEND=gloo"),
    (["ngpus=4"], "launch --ppn 4"),
    (["bakend=DDP"], "Did you mean backend=…?"),
    (["framework=pytorch", "train"], "unknown key 'train'"),
    (["no_plots=perhaps"], "expected true or false"),
    (["no_plots=8"], "no_plots=8 is a switch"),
]


def test_what_it_cannot_do_is_one_clear_line(refuses):
    refuses(smoke.main_configured, REFUSED)


def test_null_is_nothing_and_other_keys_are_options_of_the_smoke_test(monkeypatch):
    pytest.importorskip("torch")
    import ezpz
    import ezpz.test_dist

    called = []
    monkeypatch.setattr(ezpz.test_dist, "main", lambda words: called.append(words) or 0)
    monkeypatch.setattr(ezpz, "setup_torch", lambda **_: 1)
    with mock.patch.dict(os.environ):  # it sets variables of wandb
        words = ["seed=null", "batch_size=8", "precision=bf16", "no_plots=true", "profile=false"]
        assert smoke.main_configured(words) == 0
    assert called == [["--strategy=ddp", "--batch-size=8", "--no-plots", "--profile=false", "--dtype=bf16"]]
