#!/usr/bin/env bash
# A training on the machine in front of you, without a scheduler. From any folder:
#
#   …/@FILE@                                     # trains train.py
#   …/@FILE@ python3 other.py --lr 0.1           # or another program
#
# Run it again and train.py continues from its newest checkpoint: the run folder stays the same. Ctrl-C ends it.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# The Python in which `ezpz init` ran.
# shellcheck source=/dev/null
source @UTILS@
ezpz_setup_env@VENV@

if (($# == 0)); then
  set -- python3 train.py
fi
# A rank for each device, or a few where there are none. `launch -n 4 …` starts as many as you like.
launch "$@"
