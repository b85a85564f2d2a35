"""The three independent counts of tokens: engine, quota, ledger."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import redis

from billing.lookup import totals
from contracts.names import quota_settled_key, tenant_id
from pandal.datadir import DataDir


@dataclass(frozen=True)
class Account:
    num_requests: int
    num_tokens: int

    def __sub__(self, other: "Account") -> "Account":
        return Account(self.num_requests - other.num_requests, self.num_tokens - other.num_tokens)


def ledger_account(data_dir: Path, tenants: Iterable[str]) -> Account:
    found = [totals(DataDir(data_dir).ledger_url, tenant_id(tenant)) for tenant in tenants]
    return Account(
        num_requests=sum(each.num_requests for each in found),
        num_tokens=sum(sum(each.tokens.values()) for each in found),
    )


def quota_account(data_dir: Path, tenants: Iterable[str]) -> Account:
    socket = DataDir(data_dir).sockets / "quota.sock"
    with redis.Redis(unix_socket_path=str(socket)) as client:
        found = [client.hgetall(quota_settled_key(tenant_id(tenant))) for tenant in tenants]
    return Account(
        num_requests=sum(int(each.get(b"requests", 0)) for each in found),
        num_tokens=sum(int(each.get(b"tokens", 0)) for each in found),
    )
