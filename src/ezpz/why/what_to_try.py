"""Say what helps against an end whose own words are known: one table for all rules.

Only what is certain stands here, and nothing that ``launch`` has set already.
"""

from __future__ import annotations

import re

from ezpz.why.last_words import ending

__all__ = ["BY_SIGNAL", "ON_SHM", "advice_on"]

# A signal that the kernel sends for a limit or a closed pipe: what it means, and what to try (signal(7), setrlimit(2)).
BY_SIGNAL = {
    "SIGXCPU": (
        "the kernel's signal for a used up limit of CPU time (RLIMIT_CPU)",
        "`ulimit -t` shows that limit, in seconds; raise it where the job is started, or use a queue without one",
    ),
    "SIGXFSZ": (
        "the kernel's signal for a file over the limit of size (RLIMIT_FSIZE)",
        "`ulimit -f` shows that limit; raise it where the job is started, or write smaller files",
    ),
    "SIGPIPE": (
        "the kernel's signal for writing into a pipe or socket that nobody reads any more",
        (
            "look for what read it and has ended, such as `| head` or a child; Python raises an error instead unless "
            "the program has set SIGPIPE to SIG_DFL"
        ),
    ),
}
ON_SHM = (  # where torch's workers pass tensors
    "`df -h /dev/shm` shows its size; give a container more (`--shm-size=8g`, `--ipc=host`), use fewer workers, or "
    "torch.multiprocessing.set_sharing_strategy('file_system')"
)
# What stands in an exception, or in the last lines -> what to try; the first that fits counts.
_BY_WORDS = {
    re.compile(r"Weights only load failed"): (
        "torch.load reads only tensors and plain values since torch 2.6: where you trust the file, "
        "torch.load(path, weights_only=False), else torch.serialization.add_safe_globals([...])"
    ),
    re.compile(r"size mismatch for [^\n]{0,200}: copying a param"): (
        "the checkpoint is of a model with other sizes: build the model with those, or leave these "
        "parameters out (strict=False does not)"
    ),
    re.compile(r'(?:Missing|Unexpected) key\(s\) in state_dict: "module\.'): (
        "names that begin with `module.` are of DistributedDataParallel: save model.module.state_dict(), or load "
        "into the model that is wrapped"
    ),
    re.compile(r"Error\(s\) in loading state_dict"): (
        "the checkpoint is of another model: compare its keys with those of model.state_dict()"
    ),
    re.compile(r"Expected to have finished reduction in the prior iteration"): (
        "let every parameter take part in the loss on every rank, or pass find_unused_parameters=True to "
        "DistributedDataParallel; TORCH_DISTRIBUTED_DEBUG=DETAIL names the parameters"
    ),
    re.compile(r"Expected to mark a variable ready only once"): (
        "a parameter is used twice in one backward: activation checkpointing needs use_reentrant=False, shared "
        "parameters static_graph=True"
    ),
    re.compile(r"out of shared memory|insufficient shared memory|file </torch_\d"): ON_SHM,
    re.compile(r"Too many open files"): (
        "`ulimit -n` shows the limit; raise it where the job is started; for tensors of loaders "
        "torch.multiprocessing.set_sharing_strategy('file_system')"
    ),
    re.compile(r"\[Errno 27\]|File too large"): (
        "`ulimit -f` shows the limit of the size of files; raise it where the job is started, or write smaller files"
    ),
    re.compile(r"iostream error|PytorchStreamWriter failed|\bunexpected pos \d{1,20} vs \d"): (
        "a file could not be written whole: look for a full disk or quota (`df -h`), and at `ulimit -f`, the limit of "
        "the size of files"
    ),
    re.compile(r"device-side assert triggered"): (
        "mostly an index out of range: labels against classes, tokens against the vocabulary; run that batch on "
        "the CPU (TORCH_DEVICE=cpu), or with CUDA_LAUNCH_BLOCKING=1 for the line"
    ),
    re.compile(r"(?:CUDA|HIP) error: (?:an illegal memory access|unspecified launch failure|misaligned address)"): (
        "devices report errors late: CUDA_LAUNCH_BLOCKING=1 lets the traceback name the line, "
        "`compute-sanitizer` the kernel"
    ),
    re.compile(r"no kernel image is available for execution"): (
        "torch was built for other devices: compare torch.cuda.get_arch_list() with torch.cuda.get_device_capability()"
    ),
    re.compile(r"NVIDIA driver on your system is too old|CUDA driver version is insufficient"): (
        "the driver of the host is older than the CUDA of this torch: install a torch for that driver "
        "(`nvidia-smi` shows up to which CUDA), or load a newer driver"
    ),
    re.compile(r"Torch not compiled with CUDA enabled"): (
        "this Python has a torch for CPUs: `python3 -c 'import torch; print(torch.__version__)'`; install one for CUDA"
    ),
    re.compile(r"Attempting to deserialize object on a CUDA device"): (
        "the file holds tensors of a device that this host lacks: torch.load(path, map_location='cpu')"
    ),
    re.compile(r"Cannot re-initialize CUDA in forked subprocess"): (
        "touch no device before workers are forked, or give the loader multiprocessing_context='spawn'"
    ),
    re.compile(r"before the current process has finished its\s{1,9}bootstrapping phase"): (
        "put what the script runs below `if __name__ == '__main__':`: its processes import the script again"
    ),
    re.compile(r"DataLoader worker \(pid\(s\) [^)\n]{1,200}\) exited unexpectedly"): (
        "num_workers=0 loads in the rank itself and shows the error of the worker"
    ),
    re.compile(r"(?:GLIBCXX|CXXABI)_[\d.]{1,9}' not found"): (
        "a library was built with a newer compiler than this host's: load the module of a newer one, or put the "
        "environment's own lib folder first in LD_LIBRARY_PATH"
    ),
    re.compile(r"PytorchStreamReader failed (?:finding central directory|reading zip archive)"): (
        "the file is damaged or was not written to its end: load an earlier one"
    ),
}


def advice_on(words: str) -> str:
    """Return what to try against what a rank ended of, in its last words; empty where none of them is known."""
    said = ending(words)
    return next((advice for pattern, advice in _BY_WORDS.items() if pattern.search(said)), "")
