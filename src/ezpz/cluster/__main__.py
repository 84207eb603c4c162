"""``python3 -m ezpz.cluster --sh``: the job in shell words, which ``ezpz_setup_job`` evaluates.

``--sh --second`` is for a second shell of a job (``ezpz_get_job_env``): it takes what the first one saved. An entry point and no part
of the package: the launch line among the words is the answer of `ezpz.launch`.
"""

import sys

from ezpz.errors import EzpzError, end_with


def main(argv: list[str]) -> int:
    """Print the exports and return the exit code."""
    if argv not in (["--sh"], ["--sh", "--second"]):
        print("usage: python3 -m ezpz.cluster --sh [--second]     (for people: ezpz where)", file=sys.stderr)
        return 2
    from ezpz.launch.exports import exports

    try:
        print("\n".join(exports(second="--second" in argv)))
    except EzpzError as error:
        return end_with(error)
    return 0


sys.exit(main(sys.argv[1:]))
