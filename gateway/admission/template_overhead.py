"""How many tokens a chat template adds, learned from what engines counted.

Which tokens a template adds depends on how many messages there are, and on whether it must put in
a system message of its own.  The latest of each kind stands; it is the same every time, where
nothing else differs.
"""

from typing import Final

_MAX_MESSAGES: Final = 64  # beyond that, by the message
_COLD_TOKENS: Final = 16  # begin, the assistant's cue, and a system message of the template's own
_COLD_PER_MESSAGE: Final = 8
_MAX_MODELS: Final = 256

Kind = tuple[int, bool]  # messages, whether the first is a system message


class TemplateOverhead:
    def __init__(self) -> None:
        self._tokens: dict[str, dict[Kind, int]] = {}

    def tokens(self, model: str, kind: Kind) -> int:
        num_messages, has_system = kind
        known = self._tokens.get(model, {})
        if kind in known:
            return known[kind]
        nearest = max(
            (n for n, system in known if system == has_system and n <= num_messages), default=None
        )
        if nearest is None:
            return _COLD_TOKENS + _COLD_PER_MESSAGE * num_messages
        base = known[nearest, has_system]
        return base + self._per_message(known, has_system) * (num_messages - nearest)

    def learn(self, model: str, kind: Kind, num_tokens: int) -> None:
        """``num_tokens``: what the engine counted beyond the messages' own."""
        if num_tokens < 0 or kind[0] > _MAX_MESSAGES:
            return
        if model not in self._tokens and len(self._tokens) >= _MAX_MODELS:
            self._tokens.clear()
        self._tokens.setdefault(model, {})[kind] = num_tokens

    @staticmethod
    def _per_message(known: dict[Kind, int], has_system: bool) -> int:
        sizes = sorted(n for n, system in known if system == has_system)
        if len(sizes) < 2:
            return _COLD_PER_MESSAGE
        low, high = sizes[0], sizes[-1]
        grown = known[high, has_system] - known[low, has_system]
        return max(0, -(-grown // (high - low)))
