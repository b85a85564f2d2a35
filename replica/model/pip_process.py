"""``python -m replica.model.pip_process PARENT_PID ARGUMENT...``: pip, while its parent lives.

A program of its own and no ``preexec_fn``, which would run Python between fork and exec.
"""

import os
import sys

from replica.parent_death import die_with_parent


def main(arguments: list[str]) -> None:
    parent_pid, *rest = arguments
    die_with_parent(int(parent_pid))
    os.execv(sys.executable, [sys.executable, "-m", "pip", *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
