"""API key -> grant."""

from contracts.policy import hash_api_key
from gateway.errors import InvalidApiKey, PolicyUnavailable
from gateway.policies import Grant, PolicySnapshot, PolicyStore

_MAX_CACHED_HEADERS = 10_000  # a few MB; more keys than one gateway sees in a minute


class Authenticator:
    """Hashes a key once per policy snapshot, then knows its header by heart."""

    def __init__(self, policies: PolicyStore, pepper: bytes) -> None:
        self._policies = policies
        self._pepper = pepper
        self._cached_for: PolicySnapshot | None = None
        self._cache: dict[bytes, Grant] = {}

    def authenticate(self, authorization: bytes | None) -> Grant:
        """Raises InvalidApiKey, or PolicyUnavailable while no policy was ever read."""
        snapshot = self._policies.current
        if snapshot is None:
            raise PolicyUnavailable("No policy is loaded.")
        if snapshot is not self._cached_for:
            self._cache.clear()
            self._cached_for = snapshot
        if authorization is None:
            raise InvalidApiKey("Send your API key in the header 'Authorization: Bearer KEY'.")
        grant = self._cache.get(authorization)
        return self._look_up(snapshot, authorization) if grant is None else grant

    def _look_up(self, snapshot: PolicySnapshot, authorization: bytes) -> Grant:
        scheme, _, api_key = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            raise InvalidApiKey("Expected the authorization scheme 'Bearer'.")
        grant = snapshot.grants.get(hash_api_key(api_key.strip(), self._pepper))
        if grant is None:
            raise InvalidApiKey("Incorrect API key provided.")
        if len(self._cache) >= _MAX_CACHED_HEADERS:
            self._cache.clear()
        self._cache[authorization] = grant
        return grant
