"""The independent counts of tokens: engine, its replica's journal, quota, ledger."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import redis

from billing.lookup import totals
from contracts.names import quota_settled_key, tenant_id
from contracts.replica_usage import ReplicaUsage, decode_replica_usage
from contracts.spool import unframe
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


def accounts_agree(data_dir: Path, tenant: str) -> bool:
    """Of something.  False also while the store is away: it is told later what was served then."""
    try:
        quota = quota_account(data_dir, [tenant])
    except redis.ConnectionError:
        return False
    return quota.num_requests > 0 and quota == ledger_account(data_dir, [tenant])


def witnessed(data_dir: Path, replica: str) -> list[ReplicaUsage]:
    """What a replica has kept of its own count."""
    folder = DataDir(data_dir).usage_journal(replica)
    whole = b"".join(path.read_bytes() for path in sorted(folder.glob("*.spool")))
    lines = whole[: whole.rfind(b"\n") + 1].splitlines(keepends=True)
    return [decode_replica_usage(unframe(line)) for line in lines]


def witness_account(data_dir: Path, replica: str) -> Account:
    usages = witnessed(data_dir, replica)
    return Account(
        num_requests=len(usages),
        num_tokens=sum(
            usage.input_uncached_tokens + usage.input_cache_read_tokens + usage.output_text_tokens
            for usage in usages
        ),
    )
