"""What a replica served and no gateway lived to bill, posted out of the replica's own record."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from billing.audit_facts import latest_tiers
from billing.errors import OffsetConflict
from billing.ledger import Ledger, PostResult
from billing.ledger_database import LedgerRef, reading
from billing.posting import rate_batch
from billing.pricing import PriceBook
from billing.recorded_prices import check_recorded
from billing.records import Batch, EventKey, Record
from contracts.replica_usage import ReplicaUsage
from contracts.usage import Outcome, UsageEvent, UsageSource, encode_usage_event

_UNKNOWN: Final = "unknown"  # what only the gateway knew
_ATTEMPT: Final = re.compile(r"-[0-9]+$")  # a gateway's suffix to its request id


def recover(
    ledger: Ledger,
    reader: LedgerRef,
    price_book: PriceBook,
    missing: Mapping[EventKey, Sequence[ReplicaUsage]],
) -> PostResult:
    """Posts each once, marked recovered; what has come meanwhile is a repeat, and stays.

    Raises PriceBookInvalid for another ledger's, having changed nothing.
    """
    with reading(reader) as connection:
        check_recorded(connection, price_book)
        tiers = latest_tiers(connection, [tenant_id for tenant_id, _ in missing])
    events = [recovered_event(records, tiers) for records in missing.values()]
    source_id = "audit"
    start = ledger.next_offset(source_id)
    while True:
        try:
            return ledger.post(rate_batch(_batch(source_id, start, events), price_book))
        except OffsetConflict as exc:
            start = exc.stored_offset  # another auditor was first: what it has posted is a repeat


def _batch(source_id: str, start: int | None, events: Sequence[UsageEvent]) -> Batch:
    first = 0 if start is None else start
    records = [Record(first + n, encode_usage_event(event)) for n, event in enumerate(events)]
    return Batch(source_id, start, first + len(events), records)


def recovered_event(records: Sequence[ReplicaUsage], tiers: Mapping[str, str]) -> UsageEvent:
    """What the gateway would have said, as far as its replicas know.

    Of several attempts the last counts, and of those it went on from what they had generated.
    """
    chain = _last_chain(records)
    first, last = chain[0], chain[-1]
    tenant_id = last.tenant_id or ""
    is_whole = all(record.is_final for record in chain)
    return UsageEvent(
        event_id=last.event_id or "",
        request_id=_ATTEMPT.sub("", last.request_id),
        tenant_id=tenant_id,
        key_id=_UNKNOWN,
        tier=tiers.get(tenant_id, _UNKNOWN),
        model_requested=last.model,
        model=last.model,
        replica=None,
        endpoint=last.endpoint,
        is_stream=last.is_stream,
        admitted_at=first.arrived_at,
        occurred_at=last.finished_at,
        outcome=Outcome.GATEWAY_LOST,
        usage_source=UsageSource.ENGINE if is_whole else UsageSource.PARTIAL,
        input_uncached_tokens=first.input_uncached_tokens,
        input_cache_read_tokens=first.input_cache_read_tokens,
        output_text_tokens=sum(record.output_text_tokens for record in chain),
        reserved_tokens=0,
        ttft_ms=None,
        gateway_id="auditor",
        gateway_boot_id=last.replica_boot_id,
        gateway_seq=last.replica_seq,
        attempt=len(records),
        is_recovered=True,
        is_locally_admitted=any(record.is_locally_admitted for record in records),
        adapter=last.adapter,
        adapter_of=last.adapter_of,
    )


def _last_chain(records: Sequence[ReplicaUsage]) -> list[ReplicaUsage]:
    """The last attempt, after those whose tokens it was given to go on from."""
    in_order = sorted(records, key=lambda r: r.arrived_at)
    beginnings = [record for record in in_order if record.resumed_tokens == 0]
    if not beginnings:
        return in_order
    latest = beginnings[-1]
    resumed = [r for r in in_order if r.resumed_tokens > 0 and r.arrived_at >= latest.arrived_at]
    return [_answering(beginnings), *resumed]


def _answering(beginnings: Sequence[ReplicaUsage]) -> ReplicaUsage:
    """The latest; of a stream's two at once the one that was not given up, and so made more."""
    latest = beginnings[-1]
    at_once = [r for r in beginnings if r.is_stream and r.finished_at > latest.arrived_at]
    return max([latest, *at_once], key=lambda r: r.output_text_tokens)
