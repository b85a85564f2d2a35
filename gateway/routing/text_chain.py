"""A prompt's beginnings as numbers: a chain of hashes over its bytes, one at each boundary.

Equal numbers mean equal bytes before, to all likelihood, so that what is known of one prompt is
found again with the next that begins alike.  No tokenizer: a prompt of 32,000 tokens is through in
microseconds.  The hash is the process's own, keyed by its secret: nobody outside can aim at it.
"""

from bisect import bisect_right
from itertools import accumulate
from typing import Final

from gateway.prompt import PromptText

# Closer together where prompts part ways: 64 tokens at the beginning, a thousand far behind it.
_STEPS_BYTES: Final = 32 * [256] + 56 * [1_024] + 2_000 * [4_096]
BOUNDARIES_BYTES: Final = list(accumulate(_STEPS_BYTES))


def prompt_text(seed: bytes, text: bytes) -> PromptText:
    """``seed``: what decides about the cache besides the text, and its tenant's secret."""
    link = hash(seed)
    chain: list[int] = []
    start = 0
    for end in BOUNDARIES_BYTES[: bisect_right(BOUNDARIES_BYTES, len(text))]:
        link = hash((link, text[start:end]))
        chain.append(link)
        start = end
    return PromptText(chain, len(text))
