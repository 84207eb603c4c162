"""Run the public programs that were written for the older package, unedited, on two CPU ranks under `launch`.

    tests/older/run.py SOURCES [--only wordplay,mmm-fsdp,…] [--table docs/older-scripts.md]

SOURCES holds checkouts named wordplay, mmm and l2hmc-qcd, and ezpz for the snippets of its documentation. They are
copied to .test/older/work, where each program writes beside itself. What a program needs and a machine without network
and GPU lacks is stood in for, and said: data sets are small and made here, packages are those of `stand_ins`.
"""

from __future__ import annotations

import argparse
import base64
import json
import lzma
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import snippets

ROOT = Path(__file__).parents[2]
WORK = ROOT / ".test" / "older" / "work"
PYTHON = ROOT / ".test" / "older" / "bin" / "python"
LIMIT = 900  # seconds of one program


def copy_sources(sources: Path) -> None:
    """Copy the checkouts, without their history."""
    shutil.rmtree(WORK, ignore_errors=True)
    for name in ("wordplay", "mmm", "l2hmc-qcd", "ezpz"):
        if (sources / name).is_dir():
            shutil.copytree(sources / name, WORK / name, ignore=shutil.ignore_patterns(".git"), symlinks=True)


def environment() -> dict[str, str]:
    """Return the variables of a program: no proxy, no key, wandb offline."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "LANG", "HF_HOME") if name in os.environ}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    borrowed = [ROOT / ".test" / venv / "lib" / version / "site-packages" for venv in ("trackers", "hugging_face")]
    home = WORK / "home"
    home.mkdir(parents=True, exist_ok=True)
    return {
        **kept,
        "HOME": str(home),
        "PATH": f"{PYTHON.parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, [Path(__file__).parent / "stand_ins", *borrowed])),
        "OLDER_STAND_INS": str(WORK / "stood-in"),
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "TORCH_DEVICE": "cpu",
        "MPLBACKEND": "agg",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


# What stands in for data sets.


def make_mnist(folder: Path) -> None:
    """Write random digits in the files that torchvision reads."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    chance = random.Random(1)
    for part, count in (("train", 640), ("t10k", 160)):
        labels = bytes(chance.randrange(10) for _ in range(count))
        images = b"".join(bytes([25 * label] * 784) for label in labels)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + images)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels)


def make_texts(folder: Path) -> None:
    """Write the documents of ``c4_test`` and a tokenizer of single bytes in tiktoken's format."""
    chance = random.Random(2)
    words = [f"word{number}" for number in range(200)]
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"text": " ".join(chance.choices(words, k=400))}) for _ in range(200)]
    (folder / "c4_test").mkdir(exist_ok=True)
    (folder / "c4_test" / "data.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokens = [f"{base64.b64encode(bytes([number])).decode()} {number}" for number in range(256)]
    (folder / "bytes.model").write_text("\n".join(tokens) + "\n", encoding="utf-8")


def make_shakespeare(folder: Path) -> None:
    """Write the text that wordplay's own prepare.py would fetch, and let it prepare that."""
    text = lzma.decompress((ROOT / "src" / "ezpz" / "train" / "shakespeare.txt.xz").read_bytes())
    (folder / "input.txt").write_bytes(text)
    subprocess.run([PYTHON, "prepare.py"], cwd=folder, env=environment(), check=True, stdout=subprocess.DEVNULL)


# The programs.


def programs() -> dict[str, tuple[str, list[str], str]]:
    """Return name -> (folder of the checkout, words of the program, what is made for it)."""
    texts = WORK / "mmm" / "texts"
    small = "--job.config_file=train_configs/debug_model.toml --training.steps=4 --training.batch_size=2"
    return {
        "wordplay": (
            "wordplay",
            [
                "-m",
                "wordplay",
                "train.backend=DDP",
                "train.max_iters=6",
                "train.eval_interval=3",
                "train.eval_iters=2",
                "train.log_interval=1",
                "train.compile=false",
                "model.n_layer=2",
                "model.n_head=2",
                "model.n_embd=32",
                "model.block_size=64",
                "model.batch_size=4",
            ],
            "shakespeare",
        ),
        "mmm-fsdp": (
            "mmm",
            ["-m", "mmm.examples.fsdp", "--epochs=2", "--batch-size=32", "--test-batch-size=80"],
            "mnist",
        ),
        "mmm-fsdp_tp": (
            "mmm",
            [
                "-m",
                "mmm.examples.fsdp_tp",
                "--tp=2",
                "--epochs=1",
                "--dataset=random",
                "--dim=32",
                "--n-layers=2",
                "--n-heads=2",
                "--n-kv-heads=2",
                "--batch-size=2",
                "--seq-length=32",
                "--vocab-size=128",
                "--multiple-of=16",
            ],
            "",
        ),
        "mmm-train": (
            "mmm",
            [
                *f"-m mmm.train {small} --training.seq_len=64 --activation_checkpoint.mode=none".split(),
                f"--training.dataset_path={texts / 'c4_test'}",
                f"--model.tokenizer_path={texts / 'bytes.model'}",
            ],
            "texts",
        ),
        "l2hmc": (
            "l2hmc-qcd",
            [
                "-m",
                "l2hmc",
                "mode=debug",
                "dynamics.nchains=8",
                "dynamics.latvolume=[4,4]",
                "steps.nera=1",
                "steps.nepoch=4",
                "steps.test=4",
                "steps.print=1",
                "steps.log=1",
                "init_aim=false",
                "init_wandb=false",
                "compile=false",
            ],
            "",
        ),
    }


def run_program(name: str) -> dict[str, object]:
    """Run one program and return what came of it."""
    folder, words, needs = programs()[name]
    here = WORK / folder
    if needs == "mnist":
        make_mnist(here / "data" / "MNIST" / "data" / "mnist")
    elif needs == "texts":
        make_texts(here / "texts")
    elif needs == "shakespeare":
        make_shakespeare(here / "data" / "shakespeare_char")
    stood_in = WORK / "stood-in"
    stood_in.write_text("")
    env = environment()
    env["OLDER_ALSO"] = "tensorflow" if name == "l2hmc" else ""
    env["PYTHONPATH"] += f"{os.pathsep}{here / 'src'}"
    log = WORK / f"{name}.log"
    begin = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        command = [PYTHON, "-m", "ezpz.launch", "-n", "2", "--timeout", str(LIMIT), PYTHON, *words]
        done = subprocess.run(command, cwd=here, env=env, stdout=output, stderr=subprocess.STDOUT, check=False)
    text = log.read_text(encoding="utf-8", errors="replace")
    packages = sorted(set(stood_in.read_text(encoding="utf-8").splitlines()))
    return {
        "name": name,
        "code": done.returncode,
        "seconds": time.monotonic() - begin,
        "stood_in": [
            *({"mnist": ["MNIST"], "texts": ["c4_test, tokenizer"], "shakespeare": []}.get(needs, [])),
            *packages,
        ],
        "last": next((line for line in reversed(text.splitlines()) if line.strip()), ""),
        "log": log,
    }


def main() -> int:
    """Run what was asked for, print a table and return 1 where a program failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("--only", default="", help="names, with commas; `snippets` is one")
    parser.add_argument("--table", type=Path, help="write the dated results into this page")
    args = parser.parse_args()
    wanted = args.only.split(",") if args.only else [*programs(), "snippets"]
    if missing := [name for name in ("wordplay", "mmm", "l2hmc-qcd") if not (args.sources / name).is_dir()]:
        print(
            f"older: no {', '.join(missing)} in {args.sources}; expected checkouts under these names.", file=sys.stderr
        )
        return 2
    copy_sources(args.sources)
    lines = ["| program | ended with | seconds | stood in for |", "|---|---|---|---|"]
    failed = []
    for name in programs():
        if name not in wanted:
            continue
        result = run_program(name)
        how = "0" if result["code"] == 0 else f"{result['code']}: {str(result['last'])[:100]}"
        lines.append(f"| {name} | {how} | {result['seconds']:.0f} | {', '.join(result['stood_in']) or '-'} |")  # type: ignore[arg-type]
        print(lines[-1], f"({result['log']})", flush=True)
        failed += [name] if result["code"] else []
    if "snippets" in wanted and (WORK / "ezpz").is_dir():
        ran, others = snippets.run_all(WORK / "ezpz", WORK / "snippets", [str(PYTHON)], environment(), make_mnist)
        lines += ["", f"{len(ran)} of {len(ran) + len(others)} self-contained snippets of the older documentation ran."]
        lines += [f"- {where}: {why}" for where, why in others]
        print("\n".join(lines[-len(others) - 1 :]))
    if args.table:
        write_table(args.table, lines)
    return 1 if failed else 0


def write_table(page: Path, lines: list[str]) -> None:
    """Replace the page's results by these."""
    begin, end = "<!-- make older: begin -->", "<!-- make older: end -->"
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    dated = f"On {datetime.now().astimezone().date().isoformat()}, two CPU ranks:"
    page.write_text("\n".join([f"{head}{begin}", dated, "", *lines, f"{end}{tail}"]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
