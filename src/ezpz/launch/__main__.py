"""``python3 -m ezpz.launch`` is ``ezpz launch``."""

from ezpz.interrupt import end_silently

end_silently()  # before any other import: Ctrl-C shall not meet one

import sys  # noqa: E402

from ezpz.interpreter import leave_working_folder  # noqa: E402

leave_working_folder()

from ezpz.launch.entry import main  # noqa: E402  # and nothing before that

if __name__ == "__main__":
    sys.exit(main())
