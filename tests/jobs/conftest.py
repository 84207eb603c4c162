"""The fixtures of launches and of verbs."""

from lab.launches import in_time, launch, mpich, site, start_launch  # noqa: F401
from lab.verbs import in_process, refuses  # noqa: F401
