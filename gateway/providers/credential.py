"""A credential of ours: known to the server of another owner that it is for, and to no client."""

from typing import Final

import msgspec

from contracts.errors import UNDECODABLE
from gateway.errors import CredentialRefused

_PART_CHARACTERS: Final = 6  # in a row: as many as servers show of one that they half hide
_LEAST_CHARACTERS: Final = 16  # of a secret.  What has fewer, or no digit, is a word for a server
# that wants none ("none", "ollama", "sk-no-key-required"), and may stand in any answer.
_REFUSED_STATUS: Final = 400
_REFUSED: Final = "API_KEY_INVALID"  # Google's reason, with that status


class _Detail(msgspec.Struct):
    reason: str | None = None


class _Error(msgspec.Struct):
    details: list[_Detail]


class _Refusal(msgspec.Struct):
    error: _Error


_decode_refusal = msgspec.json.Decoder(_Refusal | list[_Refusal]).decode


class Credential:
    def __init__(self, secret: str) -> None:
        is_word = len(secret) < _LEAST_CHARACTERS or not any(map(str.isdigit, secret))
        self._secret = b"" if is_word else secret.encode()
        num_parts = max(1, len(secret) - _PART_CHARACTERS + 1) if secret else 0
        self._parts = frozenset(secret[at : at + _PART_CHARACTERS] for at in range(num_parts))

    def check_untold(self, answer: bytes) -> None:
        """Raises CredentialRefused for what is for nobody to read."""
        if self._is_in(answer):
            raise CredentialRefused("The provider's answer cannot be passed on.")

    def is_hinted_in(self, text: str) -> bool:
        """A part of it is."""
        return any(part in text for part in self._parts)

    def is_refused_in(self, status: int, error: bytes) -> bool:
        """With a status that blames the request."""
        return self._is_in(error) or (status == _REFUSED_STATUS and _is_refused(error))

    def _is_in(self, answer: bytes) -> bool:
        return bool(self._secret) and self._secret in answer


def _is_refused(error: bytes) -> bool:
    """Said by the server itself, at its own place: an error may hold all of the request."""
    try:
        told = _decode_refusal(error)
    except UNDECODABLE:
        return False
    refusals = told if isinstance(told, list) else [told]
    details = [detail for refusal in refusals for detail in refusal.error.details]
    return any(detail.reason == _REFUSED for detail in details)
