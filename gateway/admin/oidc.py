"""Bearer tokens of an OpenID Connect provider (RFC 7519; OpenID Connect Core 1.0, 3.1.3.7).

Only signatures by asymmetric keys count, and a key decides what it verifies: a token that names
HMAC, and is signed with the public key, is refused.  The provider's keys are fetched again when one
is named that is not known, but no more often than every ten seconds; and every five minutes, so
that one that was withdrawn is good for ten at most.
"""

import asyncio
import logging
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt
import msgspec

from contracts.errors import UNDECODABLE
from gateway.admin.callers import ROLES, Caller
from gateway.errors import AdminUnauthorized, Unavailable
from gateway.worker_thread import WorkerThread

logger = logging.getLogger(__name__)

_ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
_REQUIRED: Final = ("exp", "iat", "aud", "iss", "sub")
_LEEWAY_S: Final = 30  # between two machines' clocks
_REFETCH_S: Final = 10.0
_FRESH_S: Final = 300.0
_KEPT_S: Final = 600.0  # while the provider is away
_PATIENCE_S: Final = 5.0
_MAX_BYTES: Final = 1_048_576

_Document = dict[str, Any]  # JSON


@dataclass(frozen=True, slots=True)
class Provider:
    issuer: str
    audience: str
    jwks_url: str | None  # None: as its discovery document says
    roles_claim: str  # a path: realm_access.roles
    role_prefix: str  # pandal- makes pandal-viewer a viewer


class OidcTokens:
    """Fetches keys in a thread of its own, once for all who wait for them."""

    def __init__(self, provider: Provider, monotonic_s: Callable[[], float]) -> None:
        self._provider = provider
        self._monotonic_s = monotonic_s
        self._thread = WorkerThread("oidc")
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._read_s = 0.0  # when they were told
        self._asked_s: float | None = None
        self._is_away = False  # at the last try
        self._lock = asyncio.Lock()

    async def caller(self, token: str) -> Caller:
        """Raises AdminUnauthorized, Unavailable."""
        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError as exc:
            raise _refused() from exc
        key = await self._key(header.get("kid"), str(header.get("alg")))
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=self._provider.audience,
                issuer=self._provider.issuer,
                leeway=_LEEWAY_S,
                options={"require": list(_REQUIRED)},
            )
        except (jwt.InvalidTokenError, jwt.InvalidKeyError, ValueError, TypeError) as exc:
            raise _refused() from exc
        return self._with_role(claims)

    def _with_role(self, claims: _Document) -> Caller:
        found: object = claims
        for part in self._provider.roles_claim.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        named = found.split() if isinstance(found, str) else found
        names = [n for n in named if isinstance(n, str)] if isinstance(named, list) else []
        prefix = self._provider.role_prefix
        roles = [ROLES.get(name.removeprefix(prefix)) for name in names if name.startswith(prefix)]
        granted = [role for role in roles if role is not None]
        if not granted:
            raise AdminUnauthorized("The token grants no role here.")
        return Caller(str(claims["sub"]), max(granted))

    async def _key(self, key_id: object, algorithm: str) -> jwt.PyJWK:
        if algorithm not in _ALGORITHMS or not isinstance(key_id, str):
            raise _refused()
        if self._is_due(key_id):
            async with self._lock:
                if self._is_due(key_id):  # nobody fetched them meanwhile
                    await self._renew()
        key = self._keys.get(key_id)
        if key is None and self._is_away:
            raise _unavailable()
        if key is None or not _fits(key, algorithm):
            raise _refused()
        return key

    def _is_due(self, key_id: str) -> bool:
        now_s = self._monotonic_s()
        if self._asked_s is not None and now_s - self._asked_s < _REFETCH_S:
            return False
        return key_id not in self._keys or now_s - self._read_s >= _FRESH_S

    async def _renew(self) -> None:
        try:
            self._keys = await self._thread.call(self._fetch_keys)
        except Unavailable as exc:
            self._is_away = True
            logger.warning("no signing keys", extra={"error": str(exc)})
            if self._monotonic_s() - self._read_s >= _KEPT_S:
                self._keys = {}
        else:
            self._is_away, self._read_s = False, self._monotonic_s()
        self._asked_s = self._monotonic_s()

    def _fetch_keys(self) -> Mapping[str, jwt.PyJWK]:
        """Blocking.  Raises Unavailable."""
        url = self._provider.jwks_url
        if url is None:
            base = self._provider.issuer.rstrip("/")
            url = str(_fetched(f"{base}/.well-known/openid-configuration").get("jwks_uri"))
        found = _fetched(url).get("keys")
        if not isinstance(found, list):
            raise _unavailable()
        keys: dict[str, jwt.PyJWK] = {}
        for member in found:
            if not isinstance(member, dict):
                continue
            try:
                key = jwt.PyJWK.from_dict(member)
            except (jwt.PyJWKError, jwt.InvalidKeyError, ValueError, TypeError):
                continue  # of a kind that we do not know; others may be
            if isinstance(key.key_id, str) and key.public_key_use in (None, "sig"):
                keys[key.key_id] = key
        logger.info("signing keys fetched", extra={"num_actions": len(keys)})
        return keys

    def close(self) -> None:
        self._thread.stop()


def _fits(key: jwt.PyJWK, algorithm: str) -> bool:
    """One that says what it is for verifies nothing else; else its kind decides."""
    kinds = {"R": "RSA", "P": "RSA", "ES": "EC", "Ed": "OKP"}
    expected = kinds.get(algorithm[:1]) or kinds.get(algorithm[:2])
    return bool(key.key_type == expected)


def _fetched(url: str) -> _Document:
    """Raises Unavailable."""
    if not url.startswith(("https://", "http://127.0.0.1:", "http://localhost:")):
        raise Unavailable("The identity provider's address is not https.")
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE_S) as answer:
            return msgspec.json.decode(answer.read(_MAX_BYTES), type=_Document)
    except (OSError, urllib.error.URLError, *UNDECODABLE) as exc:
        raise _unavailable() from exc


def _unavailable() -> Unavailable:
    return Unavailable("The identity provider does not tell its keys.")


def _refused() -> AdminUnauthorized:
    """Never says why: a forger would learn."""
    return AdminUnauthorized("The token is not good for this API.")
