"""Times on a device, the ceilings they are held against, and rows of the table that says so."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Work = Callable[[], object]


@dataclass(frozen=True)
class Row:
    section: str
    name: str
    value: float
    unit: str
    target: float | None = None  # None: only to be known
    is_at_most: bool = False  # the target is a largest, not a least

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        is_met = self.value <= self.target if self.is_at_most else self.value >= self.target
        return "pass" if is_met else "short"


@dataclass(frozen=True)
class Ceilings:
    bytes_per_s: float  # of a large copy: read and written
    flop_per_s: float  # of a large bfloat16 product


def median_s(work: Work, device: torch.device, rounds: int) -> float:
    """Of whole rounds, the second level of cache swept before each; the first is not counted."""
    work()
    if device.type != "cuda":
        return statistics.median(_cpu_s(work) for _ in range(rounds))
    sweep = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    events = []
    for _ in range(rounds):
        sweep.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) / 1e3


def _cpu_s(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_ceilings(device: torch.device, *, is_tiny: bool) -> Ceilings:
    """Random numbers: products of zeros take less power, and so less time."""
    num_bytes, size = (1 << 16, 64) if is_tiny else (2 << 30, 8192)
    source = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = median_s(lambda: target.copy_(source), device, 3 if is_tiny else 20)
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    product_s = median_s(lambda: a @ b, device, 3 if is_tiny else 20)
    return Ceilings(2 * num_bytes / copy_s, 2 * size**3 / product_s)


def print_table(rows: list[Row]) -> None:
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        sign = "<=" if row.is_at_most else ">="
        target = "" if row.target is None else f"  {sign} {row.target:g}  {row.verdict}"
        print(f"{row.section:8}  {row.name:{width}}  {row.value:12.4g} {row.unit:10}{target}")
