"""From an Authorization header to a caller; who keeps failing waits."""

import hashlib
import hmac
import math
from collections.abc import Callable

from gateway.admin.callers import Caller, Role
from gateway.admin.oidc import OidcTokens
from gateway.errors import AdminUnauthorized, TooManyAttempts
from gateway.failure_meter import FailureMeter

_BURST, _PER_MINUTE = 20, 10


class Authority:
    """``static``: names and tokens, each with its role; of the local fleet, or to begin with."""

    def __init__(
        self,
        static: tuple[tuple[str, str, Role], ...],
        oidc: OidcTokens | None,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._static = [(_digest(token), Caller(name, role)) for name, token, role in static]
        self._oidc = oidc
        self._failures = FailureMeter(monotonic_s, burst=_BURST, per_minute=_PER_MINUTE)

    async def caller(self, authorization: str | None, address: str) -> Caller:
        """Raises AdminUnauthorized, TooManyAttempts, Unavailable.

        Who fails waits, and nobody else at its address: a good token cannot be come by by guessing.
        """
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            raise AdminUnauthorized("Send 'Authorization: Bearer TOKEN'.")
        try:
            return await self._of_token(token.strip())
        except AdminUnauthorized:
            wait_s = self._failures.wait_s(address)
            if wait_s > 0:
                raise TooManyAttempts(retry_after_ms=math.ceil(wait_s * 1e3)) from None
            self._failures.note(address)
            raise

    async def _of_token(self, token: str) -> Caller:
        digest = _digest(token)
        found = [c for known, c in self._static if hmac.compare_digest(known, digest)]
        if found:
            return found[0]
        if self._oidc is None:
            raise AdminUnauthorized("The token is not good for this API.")
        return await self._oidc.caller(token)


def _digest(token: str) -> bytes:
    """Of equal length for all: a comparison then tells nothing of the token's."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
