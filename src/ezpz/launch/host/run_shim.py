"""Run the shim in front of a rank: a file of its own, because Python compiles the one that it is given each time."""

import _signal  # type: ignore[import-not-found]  # `signal` without its enums, which cost 5 ms

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # until the shim passes signals on, it ends of one
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # with nothing on the screen, as a program without Python does

import os
import sys

sys.path.insert(0, os.path.abspath(__file__ + "/../../../.."))  # pathlib costs 10 ms

from ezpz.launch.host.shim import run

run(sys.argv[1:])
