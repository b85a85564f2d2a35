"""The quota's own totals, from the store that gateways settle with; billing's only use of redis.

For what is rare: an audit, and budgets after a loss.  One server; a cluster's other nodes are not
followed.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from redis.sentinel import Sentinel

from billing.audit import Account
from billing.errors import QuotaStoreUnavailable
from contracts.names import TenantId, quota_settled_key

_TIMEOUT_S = 2.0
_SENTINELS_SCHEME, _SENTINELS_PORT = "redis+sentinel://", 26379


def settled_accounts(url: str, tenant_ids: Iterable[TenantId]) -> Mapping[str, Account]:
    """By tenant.  Raises QuotaStoreUnavailable."""
    names = sorted(set(tenant_ids))
    with quota_store(url) as store:
        found = [store.hgetall(quota_settled_key(name)) for name in names]
    return {
        name: Account(int(each.get(b"requests", 0)), int(each.get(b"tokens", 0)))
        for name, each in zip(names, found, strict=True)
    }


@contextmanager
def quota_store(url: str) -> Iterator[Any]:  # Any: redis types its replies as what they may be
    """Raises QuotaStoreUnavailable, which does not repeat the address: it may hold a password."""
    try:
        client = _client(url)
    except ValueError as exc:
        raise QuotaStoreUnavailable(
            "expected redis://HOST:PORT, redis+sentinel://HOST:PORT/SERVICE or unix:///PATH"
        ) from exc
    try:
        yield client
    except redis.RedisError as exc:
        raise QuotaStoreUnavailable(f"quota store: {type(exc).__name__}: {exc}") from exc
    finally:
        client.close()


def _client(url: str) -> redis.Redis:
    """Raises ValueError."""
    limits = {"socket_timeout": _TIMEOUT_S, "socket_connect_timeout": _TIMEOUT_S}
    if not url.startswith(_SENTINELS_SCHEME):
        return redis.Redis.from_url(url, protocol=2, **limits)
    credentials, _, hosts = urlsplit(url).netloc.rpartition("@")
    service, _, database = urlsplit(url).path.removeprefix("/").partition("/")
    who = urlsplit(f"//{credentials}@")
    places = [urlsplit(f"//{host}") for host in hosts.split(",")]
    sentinels = [(place.hostname, place.port or _SENTINELS_PORT) for place in places]
    asked: Any = Sentinel  # redis has no types for it
    found: redis.Redis = asked(sentinels, sentinel_kwargs=limits, protocol=2).master_for(
        service, db=int(database or 0), username=unquote(who.username or "") or None,
        password=unquote(who.password or "") or None, **limits,
    )  # fmt: skip
    return found
