"""The fixtures of launches."""

from lab.launches import in_time, launch, mpich, site, start_launch  # noqa: F401
