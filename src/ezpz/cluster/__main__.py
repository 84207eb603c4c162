"""Run ``python3 -m ezpz.cluster --sh``: print the job in shell words, which ``ezpz_setup_job`` evaluates.

``--sh --second`` is for a second shell of a job (``ezpz_get_job_env``): it takes what the first one saved. The launch
line among the words is the answer of a package above this one, so that the work is done there; here is only its
address.
"""

import sys
from importlib import import_module

from ezpz.interpreter import collect_rarely, leave, leave_working_folder

leave_working_folder()
collect_rarely()

leave(import_module("ezpz.launch.exports").main(sys.argv[1:]))
