"""What it costs to send more where the KV cache is nearly full, beyond what must be computed.

Blocks that nobody uses can be given away; once nearly all are in use, one request more has another
preempted, and that one is computed again from its first token.  So a full replica counts as having
to do one sequence's worth of tokens more, and less where it is not quite full.
"""

from typing import Final

_NEARLY_FULL: Final = 0.85  # of the blocks, in use by requests that run


def preemption_tokens(kv_usage: float, kv_tokens: float, num_running: int) -> int:
    """``kv_tokens``: that the whole cache has room for."""
    if kv_usage <= _NEARLY_FULL or num_running == 0:
        return 0
    pressure = min(1.0, (kv_usage - _NEARLY_FULL) / (1.0 - _NEARLY_FULL))
    return round(pressure * kv_usage * kv_tokens / num_running)
