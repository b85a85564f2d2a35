"""What another policy would have done in the last hour: the record, replayed on a store of our own.

The policy in force is replayed, too.  How many of its decisions come out as they were says how far
the other result can be trusted: the beginning of the record may depend on what was before it.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from contracts.names import TenantId, quota_record_key
from contracts.policy import PolicyDocument
from gateway.admission.quota_store import QuotaStore, slot_of
from gateway.admission.record import Noted, NotedAsk, noted
from gateway.admission.replay import Decision, Replay
from gateway.admission.resp import error_text, pack
from gateway.errors import QuotaRefused, QuotaUnavailable
from gateway.resp_address import RespAddress
from pandal.connected_store import connected_store
from pandal.errors import Unreachable
from pandal.valkey import quota_server, valkey_binary, wait_until_serving

_CALL_DEADLINE_S = 30.0  # the record of a busy tenant is some megabytes
_CONNECT_S = 10.0
_MICROSECONDS_A_SECOND = 1_000_000


class Hindsight(msgspec.Struct, frozen=True, kw_only=True):
    """Of one tenant.  A request that comes again until it is served is told once a time."""

    tenant: str
    first_at: datetime  # of the asks that are known: a busy tenant's record is shorter than an hour
    last_at: datetime
    num_asks: int
    num_refused: int  # in truth
    num_reproduced: int  # of the asks: how many the policy in force decides again as it did
    num_refused_then: int  # by the proposed policy
    newly_refused: int
    newly_refused_first_at: datetime | None
    newly_refused_last_at: datetime | None
    newly_refused_by: tuple[str, ...]
    newly_served: int
    newly_served_tokens: int  # that they asked for


def told(found: Sequence[Hindsight]) -> Iterator[str]:
    """In lines for people."""
    if not found:
        yield "nobody has asked for anything since then"
    for each in found:
        yield (
            f"{each.tenant}: {each.num_asks:,} asks from {each.first_at:%H:%M:%S} to "
            f"{each.last_at:%H:%M:%S} UTC: "
            f"now {each.num_refused:,} refused, proposed {each.num_refused_then:,}"
        )
        if each.newly_refused:
            first, last = each.newly_refused_first_at, each.newly_refused_last_at
            yield (
                f"  {each.newly_refused:,} more refused, {first:%H:%M:%S} to {last:%H:%M:%S} UTC, "
                f"by {', '.join(each.newly_refused_by)}"
            )
        if each.newly_served:
            tokens = each.newly_served_tokens
            yield f"  {each.newly_served:,} more served, which asked for {tokens:,} tokens"
        share = f"{each.num_reproduced:,} of {each.num_asks:,}"
        yield f"  the policy in force, replayed, decides {share} as it did"


async def dry_run(
    quota: RespAddress,
    current: PolicyDocument,
    proposed: PolicyDocument,
    tenants: Sequence[TenantId],
    since_s: float,
) -> list[Hindsight]:
    """Of those that asked for something since then.  Raises Unreachable, PreflightFailed."""
    async with _connected(quota) as live:
        records = {tenant: await _record(live, tenant, since_s) for tenant in tenants}
    found = []
    async with _scratch_store() as scratch:
        for tenant, record in records.items():
            if any(isinstance(entry, NotedAsk) for entry in record):
                found.append(await _hindsight(scratch, tenant, record, current, proposed))
    return found


async def _hindsight(
    scratch: QuotaStore,
    tenant: TenantId,
    record: Sequence[Noted],
    current: PolicyDocument,
    proposed: PolicyDocument,
) -> Hindsight:
    async def call(command: bytes) -> object:
        return _checked(await scratch.call(command, slot_of(tenant)))

    async def replayed(document: PolicyDocument) -> list[Decision]:
        await call(pack("FLUSHALL"))
        return await Replay(call, document, tenant).run(record)

    asks = [entry for entry in record if isinstance(entry, NotedAsk)]
    again = await replayed(current)
    then = await replayed(proposed)
    refused = [d for d in then if d.refused_by is not None and d.ask.is_admitted]
    served = [d for d in then if d.refused_by is None and not d.ask.is_admitted]
    return Hindsight(
        tenant=tenant,
        first_at=asks[0].at,
        last_at=asks[-1].at,
        num_asks=len(asks),
        num_refused=sum(not ask.is_admitted for ask in asks),
        num_reproduced=sum((d.refused_by is None) == d.ask.is_admitted for d in again),
        num_refused_then=sum(d.refused_by is not None for d in then),
        newly_refused=len(refused),
        newly_refused_first_at=refused[0].at if refused else None,
        newly_refused_last_at=refused[-1].at if refused else None,
        newly_refused_by=tuple(sorted({str(d.refused_by) for d in refused})),
        newly_served=len(served),
        newly_served_tokens=sum(d.ask.tokens for d in served),
    )


async def _record(store: QuotaStore, tenant: TenantId, since_s: float) -> Sequence[Noted]:
    """Oldest first."""
    reply = await store.call(pack("XRANGE", quota_record_key(tenant), "-", "+"), slot_of(tenant))
    since_us = since_s * _MICROSECONDS_A_SECOND
    return [entry for entry in noted(_checked(reply)) if entry.at_us >= since_us]


def _checked(reply: object) -> object:
    error = error_text(reply)
    if error is not None:
        raise Unreachable(f"the quota store refuses: {error}")
    return reply


@contextlib.asynccontextmanager
async def _connected(address: RespAddress) -> AsyncIterator[QuotaStore]:
    try:
        async with connected_store(
            address, call_deadline_s=_CALL_DEADLINE_S, connect_s=_CONNECT_S
        ) as store:
            yield store
    except QuotaRefused as exc:
        why = exc.reason if exc.detail is None else f"{exc.reason}: {exc.detail}"
        raise Unreachable(f"the quota store cannot be used ({why})") from exc
    except (TimeoutError, QuotaUnavailable) as exc:
        raise Unreachable("the quota store does not answer") from exc


@contextlib.asynccontextmanager
async def _scratch_store() -> AsyncIterator[QuotaStore]:
    """A server that nobody else uses, and that leaves nothing."""
    with tempfile.TemporaryDirectory(prefix="pandal-dry-run-") as name:
        socket = Path(name) / "scratch.sock"
        command = quota_server(valkey_binary(), socket=socket, state_dir=Path(name))
        server = await asyncio.create_subprocess_exec(
            *command, "--appendonly", "no", stdout=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(_CONNECT_S):
                await wait_until_serving(socket)
            async with _connected(RespAddress.parse(f"unix://{socket}")) as store:
                yield store
        finally:
            server.terminate()
            await server.wait()
