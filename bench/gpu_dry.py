"""Count what a step of `bench/gpu.py`'s models would do on a card, on a machine without one, beside the peers' models.

    python bench/gpu_dry.py --peers DIR                  operations and bytes of each, without a compiler
    python bench/gpu_dry.py --peers DIR --compiled       the kernels that Inductor writes, model and loss as one graph
    python bench/gpu_dry.py --only vit --operations      each operation by itself
    python bench/gpu_dry.py --run train.py ARGUMENTS     any program of one rank: does it run, and what does it take?

It takes a torch with CUDA and Triton (tried: 2.14.1+cu130), gcc, and no GPU. A runtime that runs nothing (`gpu_dry.c`)
says that there is one card of compute capability 9.0; counts are of torch's fake tensors, of full size. So autocast,
attention's kernel, what is recomputed and the code of Inductor are those of a card. Numbers and times are not: a count
tells where two models differ, and a pair on a card (`make gpu`) what that is worth.

--run prints the peak of torch's allocator, which is a card's. Kernels do nothing, so that every number is what lay in
memory. cuDNN is off, and DistributedDataParallel ends with an error, as it compares its parameters on the card.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import types
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
BEGUN = "GPU_DRY_BEGUN"  # set where the card is there
# They move no data: views, and questions.
FREE = {"_reshape_alias", "_unsafe_view", "_version", "alias", "as_strided", "chunk", "detach", "device", "expand"}
FREE |= {"permute", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unsqueeze"}
FREE |= {"view", "view_as_complex", "view_as_real"}
PRODUCTS = {"addmm", "bmm", "convolution", "convolution_backward", "mm"}


# The card that there is not.


def begin_again_with_a_card():
    """Make the runtime and the driver that run nothing, and start this program again with them."""
    wanted = "expected torch with CUDA, and Triton"
    try:
        import torch

        if torch.version.cuda is None:
            sys.exit(f"gpu_dry: torch {torch.__version__} has no CUDA (from {sys.executable}); {wanted}.")
        import triton
    except ModuleNotFoundError as error:
        sys.exit(f"gpu_dry: {error.name} is not installed for {sys.executable}; {wanted}.")
    if torch.cuda.is_available():
        sys.exit("gpu_dry: there is a GPU; expected none. Measure on it: make gpu.")
    missing = [each for each in ("gcc", "nm") if shutil.which(each) is None]
    if missing:
        sys.exit(f"gpu_dry: no {' and no '.join(missing)} on PATH; expected both. Install gcc and binutils.")
    headers = Path(triton.__file__).parent / "backends/nvidia/include"
    parts = [each for each in Path(torch.__file__).parent.glob("lib/lib*.so") if re.search("cuda|python", each.name)]
    with tempfile.TemporaryDirectory(prefix="ezpz-dry-") as name:
        folder = Path(name)
        asked = subprocess.run(["nm", "-D", "--undefined-only", *parts], capture_output=True, text=True, check=True)
        answers = HERE / "gpu_dry.c"
        libraries = r" U ((?:cuda|cublas|cusparse|cufft|curand|cusolver|nccl)[A-Z]\w*)"
        given = set(re.findall(r"((?:cuda|cublas|nccl)\w+)\(", answers.read_text()))
        runtime = set(re.findall(libraries, asked.stdout)) - given
        runtime = {each for each in runtime if not each.startswith("cudaGetError")}  # texts, which torch has
        compile_library(folder / "libcudart_dry.so", headers, returning_0(runtime), answers)
        # The driver: what torch asks of it, and Triton, which loads it and takes what it has.
        driver = set(re.findall(r"\bCUDAAPI (cu[A-Z]\w+)", (headers / "cuda.h").read_text()))
        driver |= set(re.findall(r"\b(cu[A-Z]\w+_v\d)\b", (headers / "cuda.h").read_text()))
        driver.discard("cuDevicePrimaryCtxGetState")
        active = "int cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *on) { *flags = 0; *on = 1; return 0; }\n"
        compile_library(folder / "libcuda.so.1", headers, returning_0(driver) + active)
        paths = os.pathsep.join(filter(None, (name, os.environ.get("LD_LIBRARY_PATH"))))
        env = {**os.environ, "LD_PRELOAD": str(folder / "libcudart_dry.so"), "LD_LIBRARY_PATH": paths, BEGUN: "1"}
        env |= {"TORCHINDUCTOR_CACHE_DIR": name, "TRITON_CACHE_DIR": name, "TORCH_DEVICE": "cuda"}
        return subprocess.run([sys.executable, __file__, *sys.argv[1:]], env=env, check=False).returncode


def returning_0(names):
    return "".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(names))


def compile_library(path, headers, text, *files):
    path.with_suffix(".c").write_text(text)
    flags = ["-shared", "-fPIC", f"-I{headers}", f"-Wl,-soname,{path.name}", "-o", str(path)]
    subprocess.run(["gcc", *flags, str(path.with_suffix(".c")), *map(str, files)], check=True)


# One step, without data.


def step_of(case, make, mode):
    """Return a model of fakes on the card, and a function that computes its loss, as `bench/gpu.py` does."""
    import torch

    import ezpz
    from ezpz.dist.model_blocks import find_blocks
    from ezpz.dist.recompute import recompute_blocks

    with torch.device("meta"):
        model = make().train()
    with mode:
        for module in model.modules():
            for kept in (module._parameters, module._buffers):  # noqa: SLF001  # as torch's own `_apply`
                for name, old in kept.items():
                    if old is not None:
                        new = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=ezpz.device())
                        kept[name] = torch.nn.Parameter(new) if isinstance(old, torch.nn.Parameter) else new
        recompute_blocks(model, find_blocks(model), case.recompute)
        batch = tuple(torch.empty_like(each, device=ezpz.device()) for each in case.batches(0))

    def loss():
        with torch.autocast("cuda", torch.bfloat16):
            return model(*batch)[1] if type(model).__module__ == "nanogpt_model" else case.loss(model, batch)

    return model, loss


def bytes_of(tensor):
    """Bytes that are read or written for a tensor: what is spread out once, and lines of memory that are half used."""
    size = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= length if stride else 1
    scattered = tensor.dim() and tensor.shape[-1] > 1 and min(tensor.stride()) > 1
    return size * 2 if scattered else size


def count_operations(model, loss, mode):
    """Return of one forward and backward pass: operation to how many, bytes, and bytes that lie in another order."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    found = collections.defaultdict(lambda: [0, 0, 0])

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **kwargs or {})
            name = func.overloadpacket.__name__
            if name not in FREE and "empty" not in name:
                seen = [each for each in tree_leaves((args, kwargs, result)) if isinstance(each, Tensor)]
                moved, row = sum(map(bytes_of, seen)), found[name]
                row[0], row[1] = row[0] + 1, row[1] + moved
                if name not in PRODUCTS and not all(each.is_contiguous() for each in seen if each.dim() > 1):
                    row[2] += moved
            return result

    with mode:
        loss().backward()  # the first step makes what later ones have
        model.zero_grad(set_to_none=True)
        with Count():
            loss().backward()
    return found


def count_kernels(_, loss, mode):
    """Return of model and loss as one graph: kernels that Inductor writes, those among them that sum across rows, their
    bytes, and kernels of libraries, of forward and backward pass.
    """
    import torch
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor
    from torch._inductor.graph import GraphLowering

    class BothAreWritten(BaseException):
        """Ends the compiler, as nothing shall run."""

    found, texts = [0, 0, 0, 0], []
    with tempfile.NamedTemporaryFile(suffix=".py") as nothing, ExitStack() as before:

        def written(graph):
            code = graph.codegen()[0]
            texts.append(getattr(code, "value", code))
            for node, numbers in graph.count_bytes()[1]:  # of 4 bytes each
                found[2] += 0 if node.is_extern() else numbers * 4
                found[3] += node.is_extern()
            if len(texts) == 2:
                raise BothAreWritten
            graph.cache_key, graph.cache_path, graph.cache_linemap = "dry", nothing.name, []
            empty = dict.fromkeys(("call", "runner", "recursively_apply_fns"))
            return types.SimpleNamespace(**empty, __file__=nothing.name, key="dry")

        before.enter_context(mock.patch.object(GraphLowering, "compile_to_module", written))
        before.enter_context(functorch.patch(force_non_lazy_backward_lowering=True, enable_autograd_cache=False))
        # Two passes of the compiler compute with numbers.
        before.enter_context(
            inductor.patch(joint_graph_constant_folding=False, shape_padding=False, fx_graph_cache=False)
        )
        torch.compiler.reset()
        with mode, suppress(BothAreWritten):
            torch.compile(loss)()
    found[0] = sum(len(re.findall(r"\btriton_\w+\.run\(", each)) for each in texts)
    found[1] = sum(len(re.findall(r"\btriton_red_\w+\.run\(", each)) for each in texts)
    return found


def run(words):
    """Run a script, or with -m a module; print what torch's allocator gave out."""
    import torch

    torch.backends.cudnn.enabled = False  # it makes plans on the card
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.distributed.destroy_process_group = lambda *_, **__: None  # NCCL's would wait for the card
    code = 0
    is_module = words[0] == "-m"
    sys.argv = words[is_module:]
    sys.path.insert(0, "" if is_module else str(Path(words[0]).resolve().parent))
    try:
        if is_module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as last:
        code = last.code if isinstance(last.code, int) else int(last.code is not None)
    print(f"gpu_dry: {torch.cuda.max_memory_allocated() / 1e9:.2f} GB at the peak", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(code)  # NCCL's threads wait as well


# What is printed.


def show_operations(case, sides, *, each):
    for side, found in sides.items():
        rows = {"": [sum(row[at] for row in found.values()) for at in range(3)]}
        if each:
            rows |= dict(sorted(found.items(), key=lambda item: -item[1][1]))
        for name, (count, moved, odd) in rows.items():
            print(
                f"| {case.name} | {side} | {name or 'all'} | {count:,} | {moved / 1e9:.1f} | {odd / 1e9:.1f} |",
                flush=True,
            )


def show_kernels(case, sides):
    for side, (written, across, moved, of_libraries) in sides.items():
        print(f"| {case.name} | {side} | {written} | {across} | {moved / 1e9:.1f} | {of_libraries} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="gpt2,llama,vit", help="cases, of gpt2, llama, vit (all)")
    parser.add_argument(
        "--peers", type=Path, help="folder of the peers' checkouts: nanoGPT, torchtitan, pytorch-image-models"
    )
    parser.add_argument("--compiled", action="store_true", help="the kernels of Inductor instead of single operations")
    parser.add_argument("--operations", action="store_true", help="each operation by itself")
    parser.add_argument("--run", nargs=argparse.REMAINDER, help="a script, or -m and a module, with its arguments")
    options = parser.parse_args()
    if options.run == []:
        parser.error("--run has no program; expected a script, or -m and a module")
    unknown = sorted(set(options.only.split(",")) - {"gpt2", "llama", "vit"})
    if unknown:
        parser.error(f"unknown cases {unknown}; expected some of gpt2,llama,vit")
    if BEGUN not in os.environ:
        return begin_again_with_a_card()
    if options.run:
        return run(options.run)
    import gpu  # isort: skip  # beside this file
    from torch._subclasses.fake_tensor import FakeTensorMode

    last = (
        "kernels | sums across rows | GB | of libraries" if options.compiled else "operation | count | GB | scattered"
    )
    print(f"| case | side | {last} |\n{'|---' * 6}|")
    for name in options.only.split(","):
        case = gpu.cases(stand_in=False)[name]()
        makers = {"ezpz": case.build}
        folder, why = gpu.folder_of_peer(case, options.peers)
        if why:
            gpu.say(why)
        else:
            makers[case.peer[0]] = lambda case=case, folder=folder: case.peer[1](folder)
        count = count_kernels if options.compiled else count_operations
        sides = {}
        for side, make in makers.items():
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            sides[side] = count(*step_of(case, make, mode), mode)
        if options.compiled:
            show_kernels(case, sides)
        else:
            show_operations(case, sides, each=options.operations)
    return 0


if __name__ == "__main__":
    sys.exit(main())
