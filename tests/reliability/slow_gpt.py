"""`ezpz.examples.gpt` whose steps take 40 ms at least, so that no machine is done before the end of a short job."""

import sys
import time

from torch.optim.optimizer import register_optimizer_step_post_hook

from ezpz.examples import gpt

register_optimizer_step_post_hook(lambda *_: time.sleep(0.04))
sys.exit(gpt.main())
