"""What of a stream of a server of another owner goes to the client.

Nothing before an answer has begun, for there may come none: then another can still be asked.
"""

import re
from typing import Final

from gateway.errors import UpstreamError
from gateway.providers.credential import Credential

_CHOICE: Final = re.compile(rb'"choices"\s*:\s*\[\s*\{')  # in a text its quotes are escaped


class ForeignStream:
    def __init__(self, credential: Credential, max_held_bytes: int) -> None:
        self._credential = credential
        self._max_held_bytes = max_held_bytes
        self._held = b""
        self._has_begun = False

    def passed(self, events: bytes) -> bytes:
        """Whole ones, in turn.  Raises UpstreamError for what is for nobody to read."""
        self._credential.check_untold(events)
        if self._has_begun:
            return events
        self._held += events
        if _CHOICE.search(events) is None:
            if len(self._held) > self._max_held_bytes:
                raise UpstreamError("The provider's answer does not begin.")
            return b""
        self._has_begun = True
        held, self._held = self._held, b""
        return held
