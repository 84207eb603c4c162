"""Where ranks are, from stacks as faulthandler and py-spy wrote them (torch 2.13; file names shortened)."""

from pathlib import Path

import ezpz
from ezpz.launch.host.process_stacks import Frame, parse_dump, parse_threads
from ezpz.launch.stack_groups import CodePlace, locate, summarise
from ezpz.watch.collectives.beside_main import awaited_threads

OWN = Path(ezpz.__file__).parent
SITE = "/venv/lib/python3.11/site-packages"
STD = "/usr/lib/python3.11"
C10D, OPTIM = f"{SITE}/torch/distributed/distributed_c10d.py", f"{SITE}/torch/optim"
DDP = f"{SITE}/torch/nn/parallel/distributed.py"
LOGGED = f"{SITE}/torch/distributed/c10d_logger.py:83 wrapper"
USER = ["/home/me/train.py:88 train", "/home/me/train.py:120 <module>"]

# What was on the stack, innermost first -> what the user is told.
STORIES = {
    "a collective": ([f"{C10D}:3251 all_reduce", LOGGED], "all_reduce"),
    "a barrier": ([f"{C10D}:5109 barrier", LOGGED], "barrier"),
    "the loader of data": (
        [
            f"{STD}/selectors.py:415 select",
            f"{STD}/multiprocessing/connection.py:930 wait",
            f"{STD}/multiprocessing/queues.py:113 get",
            f"{SITE}/torch/utils/data/dataloader.py:1303 _try_get_data",
            f"{SITE}/torch/utils/data/dataloader.py:1512 _next_data",
            f"{SITE}/torch/utils/data/dataloader.py:741 __next__",
        ],
        "DataLoader",
    ),
    "a step of an optimizer": (
        [
            f"{OPTIM}/adam.py:200 step",
            f"{OPTIM}/optimizer.py:500 wrapper",
            f"{OPTIM}/lr_scheduler.py:124 profile_hook_step",
        ],
        "step",
    ),
    "a model under DDP": (
        [
            *(f"{DDP}:{each}" for each in ("1600 _sync_buffers", "1510 _pre_forward", "1636 forward")),
            *(f"{SITE}/torch/nn/modules/module.py:{each}" for each in ("1780 _call_impl", "1769 _wrapped_call_impl")),
        ],
        "forward",
    ),
    "ezpz": (
        [f"{SITE}/torch/x.py:9 wait", f"{OWN}/dist/rendezvous.py:170 _check_in", f"{OWN}/dist/start.py:90 setup_torch"],
        "setup_torch",
    ),
    "an import": (
        [
            "<frozen posixpath>:410 realpath",
            f"{SITE}/torch/_strobelight/x.py:1 <module>",
            "<frozen importlib._bootstrap>:1176 _find_and_load",
            f"{SITE}/torch/__init__.py:120 <module>",
            "<frozen importlib._bootstrap>:1147 _find_and_load_unlocked",
            "<frozen importlib._bootstrap>:1176 _find_and_load",
        ],
        "import torch",
    ),
    "an import by ezpz": (
        [
            f"{SITE}/torch/__init__.py:120 <module>",
            "<frozen importlib._bootstrap>:1176 _find_and_load",
            f"{OWN}/dist/start.py:160 _distributed",
            f"{OWN}/dist/start.py:80 setup_torch",
        ],
        "import torch",
    ),
    "an import that still searches": (["<frozen importlib._bootstrap_external>:147 _path_stat"], "import"),
    "an import of Python's own": (
        [f"{STD}/json/__init__.py:106 <module>", "<frozen importlib._bootstrap>:1 _call"],
        "import json",
    ),
    "a wait of Python's own": ([f"{STD}/threading.py:327 wait", f"{STD}/threading.py:629 join"], "join"),
    "only private functions": ([f"{SITE}/torch/a.py:1 _inner", f"{SITE}/torch/a.py:2 _outer"], "_outer"),
    "no library": ([], "train"),
}


def frames(words):
    for word in words:
        place, _, function = word.rpartition(" ")
        file, _, line = place.rpartition(":")
        yield Frame(function, file, int(line))


def test_the_function_that_the_user_called_is_named(subtests):
    for name, (inside, what) in STORIES.items():
        with subtests.test(name):
            assert locate(list(frames([*inside, *USER]))) == CodePlace(what, "/home/me/train.py", 88)


REDUCES = f"{SITE}/torch/distributed/distributed_c10d.py:3251 all_reduce"
LOADER = [f"{SITE}/torch/utils/data/_utils/fetch.py:54 fetch", f"{SITE}/torch/utils/data/dataloader.py:741 __next__"]


def test_the_file_that_counts_as_the_users_is_named(subtests):
    for name, (stack, place) in {
        "a data set's own code in the rank itself (num_workers=0): the innermost file of the user": (
            [f"{STD}/socket.py:718 readinto", "/home/me/data.py:31 __getitem__", *LOADER, *USER],
            CodePlace("readinto", "/home/me/data.py", 31),
        ),
        "our own trainer, which is the user's code where there is no other": (
            [REDUCES, f"{OWN}/test_dist.py:120 main", "<frozen runpy>:88 _run_code"],
            CodePlace("all_reduce", f"{OWN}/test_dist.py", 120),
        ),
        "a user's own folder, called ezpz": (
            [REDUCES, "/home/me/ezpz/my_train.py:3 main"],
            CodePlace("all_reduce", "/home/me/ezpz/my_train.py", 3),
        ),
        "no code of the user: the outermost frame": (
            [f"{STD}/threading.py:327 wait", "<frozen runpy>:88 _run_code"],
            CodePlace("wait", "<frozen runpy>", 88),
        ),
    }.items():
        with subtests.test(name):
            assert locate(list(frames(stack))) == place


def test_code_given_on_the_command_line_is_the_users():
    text = 'Current thread 0x01 (most recent call first):\n  File "<string>", line 1 in <module>\n'
    assert locate(parse_dump(text)) == CodePlace("<module>", "<string>", 1)


REDUCE, DATA = CodePlace("all_reduce", "/home/me/train.py", 88), CodePlace("DataLoader", "/home/me/data.py", 31)


def test_all_ranks_are_told_in_one_line():
    found = [(rank, f"n{rank // 8 + 1:02}", DATA if rank == 7 else REDUCE) for rank in range(16)]
    assert summarise(found) == "15 ranks in all_reduce (train.py:88), rank 7 on n01 in DataLoader (data.py:31)"


def test_ranks_of_small_groups_are_named_by_ranges_with_their_hosts():
    places = {0: "sleeping in do_wait (bash)", 4: DATA, 5: DATA, 6: DATA, 9: DATA}
    found = [(rank, f"n{rank // 8 + 1:02}", places.get(rank, REDUCE)) for rank in range(16)]
    others = "ranks 4-6,9 on n01,n02 in DataLoader (data.py:31), rank 0 on n01 sleeping in do_wait (bash)"
    assert summarise(reversed(found)) == f"11 ranks in all_reduce (train.py:88), {others}"


def test_equally_large_groups_are_both_named():
    found = [(0, "n01", REDUCE), (1, "n01", DATA)]
    assert summarise(found) == "rank 0 on n01 in all_reduce (train.py:88), rank 1 on n01 in DataLoader (data.py:31)"
    assert summarise([]) == ""
    assert summarise([(0, "n01", REDUCE)]) == "rank 0 on n01 in all_reduce (train.py:88)"
    assert summarise([(0, "n01", REDUCE), (1, "n02", REDUCE)]) == "2 ranks in all_reduce (train.py:88)"


def test_many_places_are_bounded():
    found = [(rank, f"n{rank:03}", CodePlace("read", "/home/me/train.py", rank)) for rank in range(200)]
    line = summarise(found)
    assert line.endswith("rank 7 on n007 in read (train.py:7) and 192 more places")
    assert len(line) < 500
    spread = [(rank, f"n{rank:03}", REDUCE if rank > 8 else DATA) for rank in range(1, 200)]
    assert summarise(spread).endswith("ranks 1-8 on 8 hosts in DataLoader (data.py:31)")


def test_threads_that_keep_a_rank_at_its_end_are_named():
    wait = f'  File "{STD}/threading.py", line 1590 in _shutdown\n'
    bootstrap = f'  File "{STD}/threading.py", line 1002 in _bootstrap\n'
    ours = f'Thread 0x03 (most recent call first):\n  File "{OWN}/progress.py", line 9 in answer\n{bootstrap}'
    threads = [
        f'Thread 0x02 (most recent call first):\n  File "/home/me/train.py", line {line} in prefetch\n{bootstrap}\n'
        for line in (3, 7)
    ]
    dump = f"{threads[0]}{ours}\nCurrent thread 0x01 (most recent call first):\n{wait}"
    assert awaited_threads(parse_dump(dump), parse_threads(dump)) == "prefetch (train.py:3)"
    several = f"{threads[1]}{dump}"
    assert (
        awaited_threads(parse_dump(several), parse_threads(several)) == "prefetch (train.py:7), prefetch (train.py:3)"
    )
    trains = dump.replace("_shutdown", "wait")  # in the middle of a program, such as for a result
    assert awaited_threads(parse_dump(trains), parse_threads(trains)) == ""
