"""How many tokens the live requests will still generate, judging by how long answers were."""

from typing import Final

_WEIGHT_OF_LATEST: Final = 0.05


class OutputForecast:
    def __init__(self) -> None:
        self._mean_tokens: float | None = None  # None: no answer has ended yet
        self._num_live = 0
        self._allowed_tokens = 0
        self._generated_tokens = 0

    @property
    def expected_tokens(self) -> int:
        """At least one for each request, at most what they asked for."""
        most = self._allowed_tokens - self._generated_tokens
        if self._mean_tokens is None:
            return most
        likely = round(self._num_live * self._mean_tokens) - self._generated_tokens
        return min(most, max(self._num_live, likely))

    def enter(self, max_tokens: int, num_generated: int) -> None:
        self._num_live += 1
        self._allowed_tokens += max_tokens
        self._generated_tokens += num_generated

    def generate(self) -> None:
        """One token more."""
        self._generated_tokens += 1

    def leave(self, max_tokens: int, num_generated: int, *, is_complete: bool) -> None:
        """Answers that were cut short say nothing about how long answers are."""
        self._num_live -= 1
        self._allowed_tokens -= max_tokens
        self._generated_tokens -= num_generated
        if not is_complete:
            return
        mean = num_generated if self._mean_tokens is None else self._mean_tokens
        self._mean_tokens = mean + _WEIGHT_OF_LATEST * (num_generated - mean)
