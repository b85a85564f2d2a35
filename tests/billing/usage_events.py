"""Usage events, and the spool lines and segments that hold them, for the billing tests."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec

from billing.pricing import Price, PriceBook, TokenClass
from billing.records import Batch, Record
from contracts.spool import frame, segment_name
from contracts.usage import Outcome, UsageEvent, UsageSource, encode_usage_event

MODEL = "SmolLM2-135M-Instruct"
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
SEGMENT = segment_name("0a", 0)

PRICE = Price(
    price_id="smol.1",
    model=MODEL,
    effective_from=datetime(2026, 1, 1, tzinfo=UTC),
    effective_to=None,
    usd_per_million_tokens={
        TokenClass.INPUT_UNCACHED: Decimal("3"),
        TokenClass.INPUT_CACHE_READ: Decimal("0.30"),
        TokenClass.OUTPUT_TEXT: Decimal("15.000001"),
    },
)
BOOK = PriceBook([PRICE])

_TEMPLATE = UsageEvent(
    event_id="event-0",
    request_id="request-0",
    tenant_id="acme",
    key_id="key-1",
    tier="standard",
    model_requested="default",
    model=MODEL,
    replica="replica-0",
    endpoint="chat.completions",
    is_stream=True,
    admitted_at=NOON,
    occurred_at=NOON,
    outcome=Outcome.COMPLETED,
    usage_source=UsageSource.ENGINE,
    input_uncached_tokens=36,
    input_cache_read_tokens=64,
    output_text_tokens=7,
    reserved_tokens=356,
    ttft_ms=12.5,
    gateway_id="gateway-0",
    gateway_boot_id="0a",
    gateway_seq=1,
)


def usage(number: int = 0, **changes: object) -> UsageEvent:
    """The event of request ``number``."""
    identity = {"event_id": f"event-{number}", "request_id": f"request-{number}"}
    return msgspec.structs.replace(_TEMPLATE, **{**identity, **changes})


def line(event: UsageEvent) -> bytes:
    return frame(encode_usage_event(event))


def write_segment(spool_dir: Path, name: str, *lines: bytes) -> Path:
    spool_dir.mkdir(exist_ok=True)
    path = spool_dir / name
    path.write_bytes(b"".join(lines))
    return path


def batch_of(
    events: list[UsageEvent], *, first: int | None = None, source_id: str = "spool/0a-000000.spool"
) -> Batch:
    """The records ``first``, ``first`` + 1, ... of a source whose offsets count records."""
    start = 0 if first is None else first
    records = [Record(start + i, encode_usage_event(event)) for i, event in enumerate(events)]
    return Batch(source_id, first, start + len(events), records)
