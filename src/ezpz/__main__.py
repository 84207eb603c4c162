"""``python3 -m ezpz`` is the ``ezpz`` command."""

from __future__ import annotations

from ezpz.interrupt import end_silently

end_silently()  # before any other import: Ctrl-C shall not meet one

from ezpz.interpreter import collect_rarely, leave, leave_working_folder, name_other_library  # noqa: E402

leave_working_folder()
name_other_library()
collect_rarely()

from ezpz.cli import main  # noqa: E402  # and nothing before that

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from typing import NoReturn


def run() -> NoReturn:
    """Be the script ``ezpz``."""
    leave(main())


if __name__ == "__main__":
    run()
