"""Usage events as they stand in a spool."""

from datetime import UTC, datetime

from contracts.usage import Outcome, UsageEvent, UsageSource


def usage_event(seq: int, boot: str) -> UsageEvent:
    return UsageEvent(
        event_id=f"{boot}-{seq}",
        request_id=f"req-{seq}",
        tenant_id=f"tenant-{seq % 3}",
        key_id="key",
        tier="free",
        model_requested="m",
        model="m",
        replica=None,
        endpoint="completions",
        is_stream=False,
        admitted_at=datetime(2026, 1, 1, tzinfo=UTC),
        occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
        outcome=Outcome.COMPLETED,
        usage_source=UsageSource.ENGINE,
        input_uncached_tokens=1,
        input_cache_read_tokens=0,
        output_text_tokens=1,
        reserved_tokens=1,
        ttft_ms=None,
        gateway_id="g",
        gateway_boot_id=boot,
        gateway_seq=seq,
    )
