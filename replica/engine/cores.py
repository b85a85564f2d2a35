"""How many threads this process can keep busy: cores, less what its control groups withhold.

https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files
"""

import math
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path


def num_usable_cores(root: Path = Path("/")) -> int:
    """At least one."""
    cpus = os.sched_getaffinity(0)
    return max(1, min(num_physical_cores(cpus, root), *_quotas(root), len(cpus)))


def num_physical_cores(cpus: Collection[int], root: Path) -> int:
    """Of those CPUs: two that share a core compute no faster than one."""
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return len({_text(root / topology.format(cpu)) or str(cpu) for cpu in cpus})


def _quotas(root: Path) -> Iterator[int]:
    """Cores' worth of time each enclosing group may take; a container sees its own as the root."""
    base = root / "sys/fs/cgroup"
    match = re.search(r"^0::/(.*)$", _text(root / "proc/self/cgroup") or "", re.M)
    own = base / match[1] if match is not None else base
    for group in (own, *own.parents):
        if group == base or base in group.parents:
            quota, _, period = (_text(group / "cpu.max") or "max").partition(" ")
            if quota.isdigit() and period.isdigit():
                yield math.ceil(int(quota) / int(period))


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
