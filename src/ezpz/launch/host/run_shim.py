"""Run the shim in front of a rank: a file of its own, because Python compiles the one that it is given each time."""

import os
import sys

sys.path.insert(0, os.path.abspath(__file__ + "/../../../.."))  # pathlib costs 10 ms

from ezpz.launch.host.shim import run

run(sys.argv[1:])
