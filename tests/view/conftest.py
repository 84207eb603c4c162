"""The fixtures of histories."""

from lab.histories import _alone, full_disk, history, make_history, run_python  # noqa: F401
