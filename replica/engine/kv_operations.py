"""What happens to blocks besides computing: the scheduler decides it, the runner carries it out.

Operations take effect in their order, and before the step they come with.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vacate:
    """Whatever the block holds, nobody will read it: the next owner writes first."""

    block: int


@dataclass(frozen=True, slots=True)
class CopyOut:
    """To host memory, because the block is taken away from who needs its content."""

    block: int
    host_block: int


@dataclass(frozen=True, slots=True)
class CopyIn:
    """Back, perhaps to another block."""

    host_block: int
    block: int


KvOperation = Vacate | CopyOut | CopyIn
