"""The fixtures of verbs."""

from lab.verbs import in_process, refuses  # noqa: F401
