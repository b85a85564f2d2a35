"""The quota's own totals, from the store that gateways settle with; billing's only use of redis.

For what is rare: an audit, and budgets after a loss.  One server; a cluster's other nodes are not
followed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

import redis
from redis.sentinel import Sentinel

from billing.audit import Account, QuotaTotals
from billing.errors import QuotaStoreUnavailable
from contracts.debts import OwedSettlement, encode_debt
from contracts.names import TenantId, quota_holds_key, quota_owed, quota_settled_key

_TIMEOUT_S = 2.0
_MOST_OWED = 10_000  # two megabytes of the store's memory
_SENTINELS_SCHEMES, _SENTINELS_PORT = ("redis+sentinel", "rediss+sentinel"), 26379
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")  # redis' own words in a URL


class TlsSettings(Protocol):
    @property
    def redis_ca_file(self) -> Path | None: ...
    @property
    def redis_certificate_file(self) -> Path | None: ...
    @property
    def redis_certificate_key_file(self) -> Path | None: ...


def with_tls(url: str, settings: TlsSettings) -> str:
    """The store's URL with whom it is known by over TLS, and who we are to it."""
    paths = (
        settings.redis_ca_file,
        settings.redis_certificate_file,
        settings.redis_certificate_key_file,
    )
    told = {word: str(path) for word, path in zip(_TLS_FILES, paths, strict=True) if path}
    if not told or not url.lower().startswith("rediss"):
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(told, quote_via=quote)}"


def settled_totals(url: str, tenant_ids: Iterable[TenantId]) -> Mapping[str, QuotaTotals]:
    """By tenant.  Raises QuotaStoreUnavailable."""
    names = sorted(set(tenant_ids))
    with quota_store(url) as store:
        found = [store.hgetall(quota_settled_key(name)) for name in names]
    return {name: _totals(each) for name, each in zip(names, found, strict=True)}


def held_reservations(url: str, tenant_id: TenantId) -> Sequence[str]:
    """Ids that the store knows and nobody has settled.  Raises QuotaStoreUnavailable."""
    with quota_store(url) as store:
        return [held.decode() for held in store.hkeys(quota_holds_key(tenant_id))]


def tell_owed(url: str, debts: Sequence[OwedSettlement]) -> None:
    """For a gateway to settle: the next that looks.  Raises QuotaStoreUnavailable.

    While none looks the list stays as long as what is owed, and no longer than ``_MOST_OWED``: who
    tells of the rest again when there is room, as every reconciliation does, loses none.
    """
    with quota_store(url) as store:
        waiting = set(store.lrange(quota_owed(), 0, -1))
        new = [debt for debt in map(encode_debt, debts) if debt not in waiting]
        room = max(_MOST_OWED - len(waiting), 0)
        if new[:room]:
            store.rpush(quota_owed(), *new[:room])


@contextmanager
def quota_store(url: str) -> Iterator[Any]:  # Any: redis types its replies as what they may be
    """Raises QuotaStoreUnavailable, which does not repeat the address: it may hold a password."""
    try:
        client = _client(url)
    except ValueError as exc:
        raise QuotaStoreUnavailable(
            "expected redis[s]://HOST:PORT, redis[s]+sentinel://HOST:PORT/SERVICE or unix:///PATH"
        ) from exc
    try:
        yield client
    except redis.RedisError as exc:
        raise QuotaStoreUnavailable(f"quota store: {type(exc).__name__}: {exc}") from exc
    finally:
        client.close()


def _client(url: str) -> redis.Redis:
    """Raises ValueError."""
    limits: dict[str, Any] = {"socket_timeout": _TIMEOUT_S, "socket_connect_timeout": _TIMEOUT_S}
    if urlsplit(url).scheme not in _SENTINELS_SCHEMES:
        return redis.Redis.from_url(url, protocol=2, **limits)
    credentials, _, hosts = urlsplit(url).netloc.rpartition("@")
    service, _, database = urlsplit(url).path.removeprefix("/").partition("/")
    who = urlsplit(f"//{credentials}@")
    places = [urlsplit(f"//{host}") for host in hosts.split(",")]
    sentinels = [(place.hostname, place.port or _SENTINELS_PORT) for place in places]
    told = parse_qs(urlsplit(url).query.replace("+", "%2B"))  # which stands for itself
    if urlsplit(url).scheme.startswith("rediss"):
        limits |= {"ssl": True, **{word: told.get(word, [None])[0] for word in _TLS_FILES}}
    to_sentinels = {
        **limits,
        "username": told.get("sentinel_user", [None])[0],
        "password": told.get("sentinel_password", [None])[0],
    }
    asked: Any = Sentinel  # redis has no types for it
    found: redis.Redis = asked(sentinels, sentinel_kwargs=to_sentinels, protocol=2).master_for(
        service, db=int(database or 0), username=unquote(who.username or "") or None,
        password=unquote(who.password or "") or None, **limits,
    )  # fmt: skip
    return found


def _totals(fields: Mapping[bytes, bytes]) -> QuotaTotals:
    since_ms = fields.get(b"since_ms")
    return QuotaTotals(
        Account(int(fields.get(b"requests", 0)), int(fields.get(b"tokens", 0))),
        None if since_ms is None else datetime.fromtimestamp(int(since_ms) / 1e3, UTC),
    )
