"""What is wrong with what somebody wrote, for people who know none of our tools."""

import re
from typing import Final

_PLAIN: Final = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"^Value error, ", ""),
        (r"^Field required$", "it is missing"),
        (r"^Extra inputs are not permitted$", "there is no such member"),
        (r"^Input should be ((an? )?valid dictionary).*$", "expected an object"),
        (r"^Input should be an? valid ", "expected a valid "),
        (r"^Input should be ", "expected "),
        (r"^\w+ should (have|match|be) ", "expected "),
        (r", (unable to|input is) .*$", ""),
        (r" after validation, not (\d+)$", r", got \1"),
    )
)


def plain_words(message: str) -> str:
    """A message of pydantic's, which speaks of inputs and fields.  One of ours stays as it is."""
    for pattern, words in _PLAIN:
        message = pattern.sub(words, message)
    return message
