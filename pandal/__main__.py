"""Entry of the ``pandal`` command.

This file must still parse on an old interpreter: it exists to tell its user so in one line.
"""

import signal
import sys

OLDEST_PYTHON = (3, 11)


def main() -> None:
    # Until a command listens for itself.  Python's own handler would show where it was.
    signal.signal(signal.SIGINT, _end_quietly)
    if sys.version_info < OLDEST_PYTHON:
        found = ".".join(map(str, sys.version_info[:3]))
        sys.stderr.write("pandal: needs Python 3.11 or newer, this is %s\n" % found)  # noqa: UP031
        sys.exit(1)
    # Only now: everything below needs the version just checked.
    from pandal.cli import run

    run()


def _end_quietly(signal_number: int, _frame: object) -> None:
    sys.exit(128 + signal_number)


if __name__ == "__main__":
    main()
