"""A credential of ours: known to the server of another owner that it is for, and to no client."""

import re
from typing import Final

from gateway.errors import CredentialRefused

_PART_CHARACTERS: Final = 6  # in a row: as many as servers show of one that they half hide
_REFUSED: Final = re.compile(rb'"reason"\s*:\s*"API_KEY_INVALID"')  # Google's, with status 400.
# Inside a text its quotes would be escaped: no request can make a server's message say it.


class Credential:
    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        num_parts = max(1, len(secret) - _PART_CHARACTERS + 1) if secret else 0
        self._parts = frozenset(secret[at : at + _PART_CHARACTERS] for at in range(num_parts))

    def check_untold(self, answer: bytes) -> None:
        """Raises CredentialRefused for what is for nobody to read."""
        if self._is_in(answer):
            raise CredentialRefused("The provider's answer cannot be passed on.")

    def is_hinted_in(self, text: str) -> bool:
        """A part of it is."""
        return any(part in text for part in self._parts)

    def is_refused_in(self, error: bytes) -> bool:
        """With a status that blames the request."""
        return self._is_in(error) or _REFUSED.search(error) is not None

    def _is_in(self, answer: bytes) -> bool:
        return bool(self._secret) and self._secret in answer
