"""A count that someone else wrote: inside the bounds it is respected for a stated time (pure)."""

from dataclasses import replace

from autoscaler.decision import Code, Memory, Reason
from autoscaler.policy import PoolPolicy
from autoscaler.pool import PoolState


def noticed(state: PoolState, policy: PoolPolicy, memory: Memory) -> Memory:
    """The memory with until when, and which, counts are a person's."""
    foreign = {
        found.name: found.num_ordered
        for found in state.variants
        if found.num_written is not None and found.num_ordered != found.num_written
    }
    if foreign == memory.manual_counts:
        return memory
    until = state.now_s + policy.respect_manual_s if foreign else None
    return replace(memory, manual_counts=foreign, manual_until_s=until)


def respected(state: PoolState, memory: Memory) -> Reason | None:
    """Why nothing changes, and how much longer; ``None``: it is nobody's time."""
    until_s = memory.manual_until_s
    if until_s is None or state.now_s >= until_s:
        return None
    return Reason(Code.MANUAL, {"left_s": until_s - state.now_s})
