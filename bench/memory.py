"""Run a command and print its largest resident memory in MB, as ``value=…``."""

import resource
import subprocess
import sys

subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(f"value={resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.1f}")
