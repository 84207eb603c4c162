"""The example fsdp_tp with steps of a tenth of a second more, as a larger model has, and a start that can be held.

python3 ending_trainer.py PATH ARGUMENTS OF FSDP_TP…    it waits for PATH as others wait for a compiler
"""

import sys
import time
from pathlib import Path

while not Path(sys.argv[1]).exists():
    time.sleep(0.05)

from ezpz import train  # noqa: E402  # after the wait
from ezpz.examples import fsdp_tp  # noqa: E402

compute_loss = train.next_token_loss


def compute_loss_slowly(model, batch):
    time.sleep(0.1)
    return compute_loss(model, batch)


train.next_token_loss = compute_loss_slowly
sys.exit(fsdp_tp.main(sys.argv[2:]))
