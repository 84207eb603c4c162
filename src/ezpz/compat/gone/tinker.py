"""Say what to use instead of the older module `ezpz.tinker`."""

from ezpz.compat import refuse_module

refuse_module(__name__)
