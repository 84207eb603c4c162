"""``python3 -m ezpz.launch`` is ``ezpz launch``."""

import sys

from ezpz.launch.entry import main

sys.exit(main())
