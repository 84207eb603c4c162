"""``python3 -m ezpz`` is the ``ezpz`` command."""

import sys

from ezpz.cli import main

sys.exit(main())
