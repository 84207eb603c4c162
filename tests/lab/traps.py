"""A working folder that holds modules with the names of Python's own."""

# What Python and ezpz import early; each leaves a mark and then fails.
NAMES = ("json", "token", "types", "signal", "logging", "socket", "selectors", "re", "time", "select")
_TRAP = "open({!r}, 'w').close()\nraise ImportError('imported from the working folder')\n"


def lay(folder):
    """Write them, and return a function that returns the names of those which were imported."""
    marks = folder / "imported"
    marks.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(_TRAP.format(str(marks / name)))
    return lambda: sorted(path.name for path in marks.iterdir())
