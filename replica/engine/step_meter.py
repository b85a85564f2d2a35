"""How fast steps prefill and decode, over the last seconds of work."""

import math
from typing import Final

_MEMORY_S: Final = 10.0  # of work, not of idleness


class Rate:
    """Tokens a second, older work fading out."""

    def __init__(self) -> None:
        self._num_tokens = 0.0
        self._duration_s = 0.0

    def note(self, num_tokens: int, duration_s: float) -> None:
        fade = math.exp(-duration_s / _MEMORY_S)
        self._num_tokens = self._num_tokens * fade + num_tokens
        self._duration_s = self._duration_s * fade + duration_s

    @property
    def tokens_per_s(self) -> float:
        """0: nothing has been measured."""
        return self._num_tokens / self._duration_s if self._duration_s > 0.0 else 0.0


class StepMeter:
    """A step with any prefill measures prefilling, with decoding going on beside it as it does."""

    def __init__(self) -> None:
        self.prefill = Rate()
        self.decode = Rate()

    def note(self, *, num_prefilled: int, num_decoded: int, duration_s: float) -> None:
        if num_prefilled:
            self.prefill.note(num_prefilled, duration_s)
        elif num_decoded:
            self.decode.note(num_decoded, duration_s)
