"""The table of all cases: what the list of forty asks for, each staged with real processes and no torch."""

from __future__ import annotations

from failures import FAILURES
from kills import KILLED, SIGNALS
from limits import LIMITS
from lost import LOST
from machines import MACHINES
from mpi import MPI_CASES
from outputs import OUTPUTS
from plans import PLANS
from stages import FLAVOURS, flavour_of, problem
from starts import STARTS
from unkillable import UNKILLABLE

from lab import seed

CASES = (*FAILURES, *UNKILLABLE, *MPI_CASES, *SIGNALS, *KILLED, *LIMITS, *LOST, *STARTS, *OUTPUTS, *PLANS, *MACHINES)


def stageable(case, name):
    """Whether `case` can be run on the flavour `name`."""
    return not why_not(case, name)


def why_not(case, name):
    """Why `case` cannot be run on the flavour `name`; empty where it can."""
    return case.not_on.get(name) or case.not_on.get(flavour_of(name), "")


def why_no_stage(case, name):
    """Why this machine cannot run `case` on the flavour `name`; empty where it can."""
    return problem(name) or (case.over_hosts and problem("ssh")) or ""


def drawn(case, day):
    """Return the flavour on which a run with the seed `day` plays `case`: of those that there are, if there is any."""
    names = [name for name in FLAVOURS if stageable(case, name)]
    return seed.pick(day, case.id, [name for name in names if not why_no_stage(case, name)] or names)
