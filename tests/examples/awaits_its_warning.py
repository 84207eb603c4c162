"""Train as `ezpz.examples.fsdp_tp` does, and wait after ten steps for the signal that warns of the job's end.

So the training is in its midst when the signal comes, however fast or busy the machine is.
"""

import runpy
import signal
import time

from torch.optim.optimizer import register_optimizer_step_post_hook

WAITS_AFTER = 10  # steps
steps, came = [], []


def wait(*_):
    if not steps:
        handler = signal.getsignal(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, lambda *args: (came.append(args), handler(*args)))
    steps.append(len(steps))
    while len(steps) == WAITS_AFTER and not came:
        time.sleep(0.02)


register_optimizer_step_post_hook(wait)
runpy.run_module("ezpz.examples.fsdp_tp", run_name="__main__", alter_sys=True)
