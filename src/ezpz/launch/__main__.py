"""``python3 -m ezpz.launch`` is ``ezpz launch``."""

import sys

from ezpz.launch.main import main

sys.exit(main())
