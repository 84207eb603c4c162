"""``python3 -m ezpz.launch`` and the script ``launch`` are ``ezpz launch``."""

from ezpz.interrupt import FOR_RANKS, Deferring, end_silently

end_silently()  # before any other import: Ctrl-C shall not meet one
Deferring(FOR_RANKS).__enter__()  # nor shall a warning: it waits until there is somebody who passes it on

from ezpz.interpreter import collect_rarely, leave, leave_working_folder, name_other_library  # noqa: E402

leave_working_folder()
name_other_library()
collect_rarely()

from ezpz.launch.entry import main  # noqa: E402  # and nothing before that


def run() -> None:
    """Be the script ``launch``."""
    leave(main())


if __name__ == "__main__":
    run()
