"""How much memory this process may still take: of the machine, and of its control groups.

https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/filesystems/proc.html
"""

import re
from collections.abc import Iterator
from pathlib import Path


def free_memory_bytes(root: Path = Path("/")) -> int:
    """The least of what the machine and each enclosing control group have left."""
    return min(_machine_bytes(root), *_group_bytes(root), 1 << 62)


def available_bytes(limit_bytes: int | None) -> int:
    """The limit, or what there is; what libraries have taken for themselves is gone already."""
    return free_memory_bytes() if limit_bytes is None else limit_bytes


def _machine_bytes(root: Path) -> int:
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", (root / "proc/meminfo").read_text(), re.M)
    return 1 << 62 if match is None else int(match[1]) << 10


def _group_bytes(root: Path) -> Iterator[int]:
    """A container sees its own group as the root; elsewhere the path names it."""
    base = root / "sys/fs/cgroup"
    for group in {base, *_named_groups(root, base)}:
        limit, used = _number(group / "memory.max"), _number(group / "memory.current")
        if limit is not None and used is not None:
            yield max(0, limit - used + _reclaimable_bytes(group))


def _named_groups(root: Path, base: Path) -> Iterator[Path]:
    try:
        text = (root / "proc/self/cgroup").read_text()
    except OSError:
        return
    match = re.search(r"^0::/(.*)$", text, re.M)
    group = base / match[1] if match is not None else base
    while group != base and base in group.parents:
        yield group
        group = group.parent


def _reclaimable_bytes(group: Path) -> int:
    """Cached file pages count as used and are given back before anyone is killed."""
    try:
        text = (group / "memory.stat").read_text()
    except OSError:
        return 0
    match = re.search(r"^inactive_file (\d+)$", text, re.M)
    return 0 if match is None else int(match[1])


def _number(path: Path) -> int | None:
    """None: no limit, or no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
