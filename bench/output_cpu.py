"""Print the CPU time in ms that passing output on takes.

It is that of a line, all its processes included, less that of the same line whose ranks write nothing.
"""

import resource
import subprocess
import sys


def cpu(argv):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


*line, lines = sys.argv[1:]
print(f"value={(cpu([*line, lines]) - cpu([*line, '/dev/null'])) * 1000:.1f}")
