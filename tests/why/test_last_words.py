"""What a rank ended of, from the last that it wrote."""

from ezpz.why import last_words

TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n    go()\n'
LINK = "\nThe above exception was the direct cause of the following exception:\n\n"
FULL = "OSError: [Errno 28] No space left on device: '/scratch/me/step-40.pt'\n"
EZPZ = "ezpz.errors.CheckpointError: cannot save /s/step-00000001: rank 0: No space left on device; expected room.\n"


FULL_DISKS = [  # what was written, what of it says so, the file
    (TRACEBACK + FULL, "No space left on device", "/scratch/me/step-40.pt"),
    (
        "[rank1]: " + (TRACEBACK + FULL).replace("\n", "\n[rank1]: "),
        "No space left on device",
        "/scratch/me/step-40.pt",
    ),
    (
        TRACEBACK + FULL + LINK + TRACEBACK + "RuntimeError: cannot save\n",
        "No space left on device",
        "/scratch/me/step-40.pt",
    ),
    (TRACEBACK + EZPZ, "No space left on device", "/s/step-00000001"),
    (TRACEBACK + "OSError: [Errno 122] Disk quota exceeded\n", "[Errno 122]", ""),
    (
        TRACEBACK + "RuntimeError: unable to write to file </torch_71_82_0>: No space left on device (28)\n",
        "No space left on device",
        "/dev/shm",  # nothing is made there
    ),
    ("cp: error writing '/x/y': No space left on device\n", "No space left on device", ""),
    ("ezpz: metrics.jsonl: No space left on device. Training continues\n" + TRACEBACK + "ValueError: x\n", "", ""),
    ("No space left on device\n" + "later\n" * 30, "", ""),
    ("", "", ""),
]
FAULTS = [
    (
        TRACEBACK + "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n",
        "uncorrectable ECC error",
    ),
    ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n", "NVRM: Xid"),
    (
        TRACEBACK + "RuntimeError: level_zero backend failed with error: UR_RESULT_ERROR_DEVICE_LOST\n",
        "DEVICE_LOST",
    ),
    (TRACEBACK + "RuntimeError: CUDA error: an illegal memory access was encountered\n", ""),
    (TRACEBACK + "RuntimeError: the GPU was lost in thought\n", ""),
]
REFUSED = [
    (TRACEBACK + "MemoryError\n", "host"),
    (TRACEBACK + "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 GiB\n", "host"),
    (
        TRACEBACK + "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory\n",
        "host",
    ),
    ("terminate called after throwing an instance of 'std::bad_alloc'\n", "host"),
    (TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", "device"),
    (TRACEBACK + "ValueError: out of memory lane\n", ""),
]


def test_a_full_disk_and_its_file(subtests):
    for words, said, named in FULL_DISKS:
        with subtests.test(words):
            found = last_words.full_disk(words)
            assert found.replace("[Errno 28] ", "") in {said, "[Errno 28]"} if said else not found
            assert last_words.named_file(words) == named


def test_a_fault_that_a_driver_reports(subtests):
    for words, found in FAULTS:
        with subtests.test(words):
            assert last_words.broken_device(words) == found


def test_memory_that_was_refused(subtests):
    for words, where in REFUSED:
        with subtests.test(words):
            assert last_words.refused_memory(words) == where
