"""Say what to use instead of the older module `ezpz.slurm`."""

from ezpz.compat import refuse_module

refuse_module(__name__)
