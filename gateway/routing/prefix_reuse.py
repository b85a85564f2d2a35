"""How much of a prompt its home has cached, as a rule: learned from what engines report.

Of each tenant by itself, and of each kind of key: one's conversations grow, another's prompts are
never seen again.  What is never found again is not worth waiting for, nor being placed for.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gateway.prompt import SCOPE_BYTES, Affinity

_MAX_SCOPES: Final = 16_384  # the longest unheard of is forgotten
_FADE: Final = 0.98  # of what is remembered, at each request
_FIRST_TOKENS: Final = 2_000.0  # as if so many had been asked for, and half of them found
_EXPLORED: Final = 1 / 16  # of requests, as if it were unknown: what is not tried is not learned


class PrefixReuse:
    def __init__(self, random: Callable[[], float]) -> None:
        """``random``: from 0 to below 1."""
        self._random = random
        self._seen: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # cached, asked for

    def expected_tokens(self, affinity: Affinity, prompt_tokens: int) -> float:
        """Of the prompt, that its home has."""
        seen = self._seen.get(affinity.key[:SCOPE_BYTES])
        if seen is None:
            return 0.5 * prompt_tokens
        ratio = seen[0] / seen[1]
        if ratio < 0.5 and self._random() < _EXPLORED:
            ratio = 0.5
        return ratio * prompt_tokens

    def learn(self, affinity: Affinity, *, prompt_tokens: int, cached_tokens: int) -> None:
        """A request has ended at its home."""
        scope = affinity.key[:SCOPE_BYTES]
        cached, asked = self._seen.get(scope, (0.5 * _FIRST_TOKENS, _FIRST_TOKENS))
        self._seen[scope] = (
            _FADE * cached + cached_tokens,
            _FADE * asked + max(1, prompt_tokens),
        )
        self._seen.move_to_end(scope)
        if len(self._seen) > _MAX_SCOPES:
            self._seen.popitem(last=False)
