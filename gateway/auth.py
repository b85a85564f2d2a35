"""API key -> grant; which keys were used; and who guesses waits.

A header that is known costs a look into a dictionary.  The dictionary begins anew every few
seconds, so that who is looked up again is who was used lately: noting it costs others nothing.

A key is looked up by its keyed hash, so neither hit nor miss takes a time that tells of a key.
"""

import hmac
import math
from collections.abc import Callable, Mapping
from typing import Final

from contracts.policy import hash_api_key
from gateway.clock import Clock
from gateway.errors import InvalidApiKey, PolicyUnavailable, TooManyAttempts
from gateway.failure_meter import FailureMeter
from gateway.policies import Grant, LivePolicies, PolicySnapshot

_MAX_CACHED_HEADERS: Final = 10_000  # a few MB; more keys than one gateway sees in a minute
_MAX_REFUSED: Final = 1_024  # wrong ones, to be refused again without a hash
# Of one address, which may be that of a whole office with one misconfigured program.
_GUESSES_AT_ONCE, _GUESSES_PER_MINUTE = 300, 600

Peer = Callable[[], str]  # the address that a request came from


def nobody() -> str:
    return ""


class Authenticator:
    """Hashes a good key once, then knows its header by heart; policies come and go meanwhile."""

    def __init__(self, policies: LivePolicies, pepper: bytes, clock: Clock) -> None:
        self._policies = policies
        self._pepper = pepper
        self._clock = clock
        self._known_for: PolicySnapshot | None = None
        self._known: dict[bytes | None, Grant] = {}  # since the last turn
        self._hashes: dict[bytes, str] = {}  # of headers that were good once, under any policy
        self._refused: dict[bytes, None] = {}
        self._used: dict[str, float] = {}  # by key id, in seconds since 1970
        self._failures = FailureMeter(
            clock.monotonic_s, burst=_GUESSES_AT_ONCE, per_minute=_GUESSES_PER_MINUTE
        )

    def authenticate(self, authorization: bytes | None, peer: Peer = nobody) -> Grant:
        """Raises InvalidApiKey, TooManyAttempts; PolicyUnavailable while no policy was ever read.

        ``peer`` is asked only about keys that are not known.
        """
        if self._policies.current is not self._known_for:
            self._forget()
        grant = self._known.get(authorization)
        if grant is None:
            grant = self._look_up(self._known_for, authorization, peer())
            if len(self._known) >= _MAX_CACHED_HEADERS:
                self._known.clear()
            self._known[authorization] = grant
            self._used[grant.key.key_id] = self._clock.wall_s()
        return grant

    def recognize(self, authorization: bytes | None, peer: Peer = nobody) -> Grant:
        """As ``authenticate``, and no use of the key: whoever made one asks whether it is good."""
        if self._policies.current is not self._known_for:
            self._forget()
        return self._look_up(self._known_for, authorization, peer())

    def turn(self) -> Mapping[str, float]:
        """What was used since the last turn, and when it was first; begins the next."""
        self._known = {}
        used, self._used = self._used, {}
        return used

    def _forget(self) -> None:
        """What was said under another policy than the one in force."""
        self._known, self._refused = {}, {}
        self._known_for = self._policies.current

    def _look_up(
        self, snapshot: PolicySnapshot | None, authorization: bytes | None, address: str
    ) -> Grant:
        if snapshot is None:
            raise PolicyUnavailable("No policy is loaded.")
        if authorization is None:
            raise InvalidApiKey("Send your API key in the header 'Authorization: Bearer KEY'.")
        grant = self._known_once(snapshot, authorization)
        if grant is None:
            wait_s = self._failures.wait_s(address)
            if wait_s > 0:
                raise TooManyAttempts(retry_after_ms=math.ceil(wait_s * 1e3))
            try:
                grant = self._of_key(snapshot, authorization)
            except InvalidApiKey:
                self._failures.note(address)
                raise
        return grant

    def _known_once(self, snapshot: PolicySnapshot, authorization: bytes) -> Grant | None:
        """Who was let in before is no guesser, and waits for none at its address."""
        key_hash = self._hashes.get(authorization)
        grant = None if key_hash is None else snapshot.grants.get(key_hash)
        if grant is None:
            self._hashes.pop(authorization, None)
        return grant

    def _of_key(self, snapshot: PolicySnapshot, authorization: bytes) -> Grant:
        scheme, _, api_key = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            raise InvalidApiKey("Expected the authorization scheme 'Bearer'.")
        if authorization not in self._refused:
            key_hash = hash_api_key(api_key.strip(), self._pepper)
            grant = snapshot.grants.get(key_hash)
            if grant is not None and _is_of(grant, key_hash):
                if len(self._hashes) >= _MAX_CACHED_HEADERS:
                    del self._hashes[next(iter(self._hashes))]
                self._hashes[authorization] = key_hash
                return grant
            if len(self._refused) >= _MAX_REFUSED:
                self._refused.clear()
            self._refused[authorization] = None
        raise InvalidApiKey("Incorrect API key provided.")


def _is_of(grant: Grant, key_hash: str) -> bool:
    hashes = (grant.key.key_hash, *(secret.key_hash for secret in grant.key.retiring))
    return any(hmac.compare_digest(known, key_hash) for known in hashes)
