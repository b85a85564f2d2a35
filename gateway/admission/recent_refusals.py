"""Who was refused a moment ago, so that whoever asks alike meanwhile costs little.

To find out that nobody has room takes reading what is asked for, a decision of the quota's, which
is then taken back, and a look at every replica.  What a prompt of no tokens would be refused for,
any other would, too; so for a moment it is known beforehand, by key and model.

Pure: it does not know the time.
"""

import re
from dataclasses import dataclass
from typing import Final

from contracts.names import TenantId
from gateway.grants import Grant

_MAX_KNOWN: Final = 1_000  # keys and models, refused within a moment
_MODEL = re.compile(rb'"model": ?"([^"\\]*)"')  # never within a text, whose quotes are escaped
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_END_BYTES: Final = 1_024  # of a body: most clients name the model first, or last


@dataclass(frozen=True, slots=True)
class RecentRefusal:
    grant: Grant
    model: str  # by its own name
    until_s: float  # before that it is known that there is no room
    room_s: float  # when there may be some


class RecentRefusals:
    def __init__(self) -> None:
        self._known: dict[tuple[TenantId, str, bytes], RecentRefusal] = {}  # see ``_asked``

    def note(self, refusal: RecentRefusal) -> None:
        """Even a prompt of no tokens is refused so."""
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[_asked(refusal.grant, refusal.model.encode())] = refusal

    def clear(self) -> None:
        """There may be room now."""
        if self._known:
            self._known.clear()

    def find(self, grant: Grant, body: bytes, now_s: float) -> RecentRefusal | None:
        """Of what would be refused if it were looked at.  ``body``: of a request, as it came."""
        if not self._known:
            return None
        model = _model_of(body)
        return None if model is None else self.known(grant, model, now_s)

    def known(self, grant: Grant, asked_model: bytes, now_s: float) -> RecentRefusal | None:
        """As ``find``, of a request that has been read."""
        found = self._known.get(_asked(grant, asked_model))
        if found is None or found.until_s <= now_s or found.grant.tenant is not grant.tenant:
            return None
        return found


def _model_of(body: bytes) -> bytes | None:
    """The request's own, where that is sure: other members have models, too, such as metadata."""
    found = _MODEL.search(body, 0, _END_BYTES)
    if found is not None:
        start = found.start()
        if start == 1 or _num_opened(body[:start]) == 1:  # before the first is but the brace
            return found[1]
    found = _MODEL.search(body, max(0, len(body) - _END_BYTES))
    if found is not None and _num_opened(body[found.end() :]) == -1:
        return found[1]
    return None


def _num_opened(part: bytes) -> int:
    """Objects, without those that are closed.  ``part``: begins in no text."""
    part = _TEXT.sub(b"", part)
    return part.count(b"{") - part.count(b"}")


def _asked(grant: Grant, model: bytes) -> tuple[TenantId, str, bytes]:
    """Whose key, and the model as it was asked for."""
    return grant.tenant.tenant_id, grant.key.key_id, model
