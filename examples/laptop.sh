#!/usr/bin/env bash
# A training on the machine in front of you, without a scheduler. From any folder:
#
#   …/examples/laptop.sh                               # the trainer named below
#   …/examples/laptop.sh python3 train.py --lr 0.1     # or your own program
#
# Run it again and it continues from the newest checkpoint: the run folder below stays the same. Ctrl-C ends it.
# `kill -USR2` of the process `ezpz.launch` saves a checkpoint and continues, `kill` saves one and ends: as the job
# scripts beside this file do.

set -euo pipefail

checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# A Python that imports torch and ezpz: the active environment, else a virtual environment in .venv of this folder. It
# says what it installs, how large and where; the next call finds it there.
# shellcheck source=/dev/null
source "$checkout/src/ezpz/bin/utils.sh"
ezpz_setup_env

if (($# == 0)); then
  set -- python3 -m ezpz.examples.fsdp --preset debug --resume auto --outdir "${OUTDIR:-outputs/laptop}"
fi
# A rank for each device, or a few where there are none. `launch -n 4 …` starts as many as you like.
launch "$@"
