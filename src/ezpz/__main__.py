"""``python3 -m ezpz`` is the ``ezpz`` command."""

import sys

from ezpz.interpreter import leave_working_folder

leave_working_folder()

from ezpz.cli import main  # noqa: E402  # and nothing before that

sys.exit(main())
