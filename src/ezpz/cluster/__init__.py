"""Find scheduler, job, hosts, devices and site of this process, each with its origin. Standard library only."""

from __future__ import annotations

from ezpz._lazy import attach

__getattr__, __dir__ = attach(__name__)

# Detection order: Flux is started inside other schedulers' jobs and hides them; the process tree shows how the others
# are nested.
SCHEDULERS = ("flux", "slurm", "pbs", "lsf")
