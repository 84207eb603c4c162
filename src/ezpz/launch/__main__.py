"""``python3 -m ezpz.launch`` is ``ezpz launch``."""

import sys

from ezpz.launch.verb import main

sys.exit(main())
