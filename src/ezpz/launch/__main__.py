"""``python3 -m ezpz.launch`` is ``ezpz launch``."""

import sys

from ezpz.interpreter import leave_working_folder

leave_working_folder()

from ezpz.launch.entry import main  # noqa: E402  # and nothing before that

sys.exit(main())
