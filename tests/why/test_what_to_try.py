"""What is said to try against ends whose words are known, with these as torch, Python and the kernel write them."""

from ezpz.why import Facts, diagnose

TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n    go()\n'

KNOWN = {  # the last that a rank wrote -> what must be in the advice
    "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options": (
        "weights_only=False"
    ),
    'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "a". \n\t'
    'Unexpected key(s) in state_dict: "module.a". ': "model.module.state_dict()",
    'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "a". ': "compare its keys",
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.": (
        "find_unused_parameters=True"
    ),
    "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers "
    "are out of shared memory. Please try to raise your shared memory limit.": "/dev/shm",
    "OSError: [Errno 24] Too many open files: 'a'": "ulimit -n",
    "OSError: [Errno 27] File too large": "ulimit -f",
    "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598": "ulimit -f",
    "torch.AcceleratorError: CUDA error: device-side assert triggered\nCUDA kernel errors might be reported late": (
        "CUDA_LAUNCH_BLOCKING=1"
    ),
    "RuntimeError: CUDA error: an illegal memory access was encountered": "CUDA_LAUNCH_BLOCKING=1",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device": "get_arch_list()",
    "AssertionError: Torch not compiled with CUDA enabled": "for CPUs",
    "ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by a.so)": "newer compiler",
}
UNKNOWN = (
    "ValueError: no such shard",
    "FileNotFoundError: [Errno 2] No such file or directory: '/home/me/torch_2/a'",
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 114688, Hardware limit: 101376",
)


def tried(words):
    return diagnose(Facts({"state": "failed", "exit_code": 1, "cause": {"rank": 1, "code": 1, "words": words}}))[
        0
    ].advice


def test_known_words_have_advice_in_a_traceback_and_printed_alone(subtests):
    for words, advice in KNOWN.items():
        with subtests.test(words):
            assert advice in tried(f"{TRACEBACK}{words}\n")
            assert advice in tried(f"{words}\n")


def test_other_words_have_none(subtests):
    for words in UNKNOWN:
        with subtests.test(words):
            assert tried(f"{TRACEBACK}{words}\n") == ""


def test_what_a_rank_only_warned_of_before_its_exception_is_not_advised_on():
    assert tried(f"OSError: [Errno 24] Too many open files\n{TRACEBACK}ValueError: x\n") == ""
