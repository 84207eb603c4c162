"""Programs of the system, which an ordinary PATH may not name: many are in /usr/sbin."""

from __future__ import annotations

import os
import shutil

from lab import process

# Of root the right to read and to enter everything is taken away; nobody else has it.
_PLAIN = "-dac_override,-dac_read_search"
AS_PLAIN_USER = ["setpriv", f"--bounding-set={_PLAIN}", f"--inh-caps={_PLAIN}"] if os.geteuid() == 0 else []


def find(name):
    """Return the path of a program, as PATH has it or else the system's folders; None where there is none."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(process.SYSTEM_PATH))


def path(name):
    """Return the same, or the name itself where there is none: then its start tells so."""
    return find(name) or name


def missing(*names):
    """Return why not all of these programs can be used; empty where they are there."""
    absent = [name for name in names if not find(name)]
    return f"not installed: {', '.join(absent)}" if absent else ""
