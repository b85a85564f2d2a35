"""Token ids to text, one sequence at a time, and the stop strings in that text.

Two stages.  Bytes become text as soon as whole characters are there, never before.  Text becomes
output as soon as it cannot be the beginning of a stop string: what is held back is always a
proper prefix of one.  The concatenated output is therefore the text of all tokens up to the
first complete stop, however the tokens were spread over pushes.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DetokenizedText:
    text: str
    is_stopped: bool


class Detokenizer:
    def __init__(self, token_bytes: Sequence[bytes], stop: Sequence[str]) -> None:
        """``token_bytes[id]`` are the bytes a token stands for; empty for a control token."""
        self._token_bytes = token_bytes
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def resume(self, token_ids: Sequence[int], num_unstoppable: int) -> bool:
        """Take in what was put out elsewhere already; what that held back is held back again.

        The first ``num_unstoppable`` can complete no stop string.  Returns whether one is complete.
        """
        return any(
            self.push(token_id, may_stop=index >= num_unstoppable, is_last=False).is_stopped
            for index, token_id in enumerate(token_ids)
        )

    def push(self, token_id: int, *, may_stop: bool, is_last: bool) -> DetokenizedText:
        """Text that became certain.  After ``is_last`` or a stop nothing more may be pushed."""
        text = self._held + self._decoder.decode(self._token_bytes[token_id], final=is_last)
        self._held = ""
        if not self._stop or not may_stop:
            return DetokenizedText(text, is_stopped=False)
        start = self._earliest_stop(text)
        if start is not None:
            return DetokenizedText(text[:start], is_stopped=True)
        if is_last:
            return DetokenizedText(text, is_stopped=False)
        num_held = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - num_held :]
        return DetokenizedText(text[: len(text) - num_held], is_stopped=False)

    def _earliest_stop(self, text: str) -> int | None:
        """Start of the stop string that is complete first; of those, the longest."""
        matches = [
            (start + len(stop), start) for stop in self._stop if (start := text.find(stop)) >= 0
        ]
        return min(matches)[1] if matches else None


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)
