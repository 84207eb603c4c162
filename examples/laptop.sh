#!/usr/bin/env bash
# A training on this machine, without a scheduler, in the folder in which it is called: `bash FILE`.

set -euo pipefail

if [[ ! -f src/ezpz/bin/utils.sh ]]; then
  echo "no src/ezpz/bin/utils.sh in $PWD: call this file in the folder of the checkout" >&2
  exit 2
fi

# Activates a Python that has torch and ezpz, which the first call makes.
# shellcheck source=/dev/null
source src/ezpz/bin/utils.sh
ezpz_setup_env

# One rank per device on every host.
launch python3 -m ezpz.examples.fsdp --preset debug --resume auto --outdir outputs/laptop
