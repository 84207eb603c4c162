"""What a Python of ours writes that is interrupted before it can handle that: never on the screen."""

from ezpz.launch.run.child import Interrupts

FRAME = '  File "<frozen importlib._bootstrap_external>", line 1097, in __init__\n'
OURS = {
    "an import": f"Traceback (most recent call last):\n{FRAME}KeyboardInterrupt\n",
    "before the imports": "python: failed to set __main__.__loader__\n"
    f"Traceback (most recent call last):\n{FRAME}KeyboardInterrupt: \n",
    "runpy": f"Could not import runpy module\nTraceback (most recent call last):\n{FRAME}KeyboardInterrupt\n",
}
THEIRS = {
    "another error": f"Traceback (most recent call last):\n{FRAME}ImportError: no such file\n",
    "a line alone": "python: failed to set __main__.__loader__\nsrun: error: n01: task 0\n",
}


def test_only_tracebacks_of_an_interrupt_are_left_out(subtests):
    for about, text in {**OURS, **THEIRS}.items():
        with subtests.test(about):
            pipe, shown = Interrupts(), b""
            for byte in f"before\n{text}after".encode():
                shown += pipe.feed(bytes([byte]))
            shown += pipe.end()
            assert shown.decode() == f"before\n{'' if about in OURS else text}after"
