"""Entry of the ``pandal`` command.

This file must still parse on an old interpreter: it exists to tell its user so in one line.
"""

import sys

OLDEST_PYTHON = (3, 11)


def main() -> None:
    if sys.version_info < OLDEST_PYTHON:
        found = ".".join(map(str, sys.version_info[:3]))
        sys.stderr.write("pandal: needs Python 3.11 or newer, this is %s\n" % found)  # noqa: UP031
        sys.exit(1)
    # Only now: everything below needs the version just checked.
    from pandal.cli import run

    run()


if __name__ == "__main__":
    main()
