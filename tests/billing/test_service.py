"""The running service: killed, doubled or misconfigured, it never loses or doubles an event."""

import asyncio
import random
import sqlite3
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from billing.errors import LedgerMissing
from billing.lookup import Totals, find_event, totals
from billing.pricing import TokenClass
from billing.statement import statement
from contracts.spool import segment_name
from tests.billing.billing_process import BillingProcess
from tests.billing.kafka_topic import new_topic, send_events
from tests.billing.usage_events import SEGMENT, line, usage, write_segment
from tests.support.kafka_brokers import Broker, apache_kafka, kafka_home, running
from tests.support.ports import free_port
from tests.support.waiting import eventually

BASE_PRICES = """
[[price]]
id = "smol.1"
model = "SmolLM2-135M-Instruct"
effective_from = 2026-01-01T00:00:00Z
usd_per_million_tokens = { input_uncached = "3", input_cache_read = "0.30", output_text = "15" }
"""
# 36 x 3 + 64 x 0.30 + 7 x 15 millionths of a dollar
PICO_USD_PER_EVENT = 232_200_000


class Service:
    """One ledger, spool and price book, and the processes started on them."""

    def __init__(self, folder: Path) -> None:
        self.spool_dir = folder / "spool"
        self.ledger_url = f"sqlite:///{folder / 'ledger.db'}"
        self.price_book = folder / "prices.toml"
        self.price_book.write_text(BASE_PRICES)
        self._log_path = folder / "billing.log"

    def start(
        self,
        name: str = "billing",
        kafka: tuple[Broker, str] | None = None,
        **environment: str,
    ) -> BillingProcess:
        """Reads the spool, or ``kafka``: a broker and a topic."""
        source = {"BILLING_SPOOL_DIR": str(self.spool_dir)}
        if kafka is not None:
            broker, topic = kafka
            source = {
                "BILLING_KAFKA_BOOTSTRAP": broker.bootstrap,
                "BILLING_KAFKA_TOPIC": topic,
                "BILLING_KAFKA_GROUP": topic,
                "BILLING_KAFKA_SESSION_TIMEOUT_S": str(max(2.0, broker.shortest_session_s)),
                "BILLING_KAFKA_STALL_TIMEOUT_S": "5",
            }
        return BillingProcess(
            self._log_path.with_name(f"{name}.log"),
            **source,
            **environment,
            BILLING_LEDGER_URL=self.ledger_url,
            BILLING_PRICE_BOOK=str(self.price_book),
            BILLING_POLL_INTERVAL_S="0.02",
        )

    def execute(self, sql: str) -> None:
        """What an operator, or a fault, does to the ledger's file."""
        connection = sqlite3.connect(self.ledger_url.removeprefix("sqlite:///"), timeout=30)
        with connection:
            connection.execute(sql)
        connection.close()

    def totals(self) -> Totals | None:
        try:
            return totals(self.ledger_url, "acme")
        except LedgerMissing:
            return None

    def until(self, is_reached: Callable[[Totals], bool]) -> Totals:
        seen: list[Totals] = []

        def has_reached() -> bool:
            summary = self.totals()
            if summary is None:
                return False
            seen.append(summary)
            return is_reached(summary)

        eventually(has_reached, "the ledger never got there")
        return seen[-1]


def booked_more_than(num_requests: int) -> Callable[[Totals], bool]:
    return lambda totals: totals.num_requests > num_requests


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


def assert_exactly(summary: Totals, num_events: int) -> None:
    assert summary.num_requests == num_events
    assert summary.tokens == {
        TokenClass.INPUT_UNCACHED: 36 * num_events,
        TokenClass.INPUT_CACHE_READ: 64 * num_events,
        TokenClass.INPUT_CACHE_WRITE: 0,
        TokenClass.OUTPUT_TEXT: 7 * num_events,
        TokenClass.OUTPUT_REASONING: 0,
    }
    assert summary.pico_usd == PICO_USD_PER_EVENT * num_events


def test_it_posts_what_is_spooled_and_stops_cleanly_on_sigterm(service: Service) -> None:
    write_segment(service.spool_dir, SEGMENT, *(line(usage(n)) for n in range(20)))
    with service.start() as billing:
        assert_exactly(service.until(lambda t: t.num_requests == 20), 20)
        found = find_event(service.ledger_url, request_id="request-3")
        assert found is not None
        assert found.event_id == "event-3"
        assert billing.terminate() == 0
    assert statement(service.ledger_url, "acme", "2026-11").num_requests == 20
    last = msgspec.json.decode(billing.log().splitlines()[-1])
    assert (last["message"], last["service"]) == ("stopped", "billing")


def test_while_its_ledger_opens_it_answers_and_can_be_stopped(service: Service) -> None:
    """Another process's upgrade, of which nobody knows how long it takes."""
    port = free_port()
    other = sqlite3.connect(service.ledger_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("BEGIN IMMEDIATE")
    with closing(other), service.start(BILLING_PORT=str(port)) as billing:
        billing.until_log_has("listening")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
            assert answer.read().startswith(b"opening\n")
        assert billing.terminate() == 0
    assert '"message":"started"' not in billing.log()


def test_killed_at_any_moment_it_loses_and_doubles_nothing(service: Service) -> None:
    """SIGKILL after SIGKILL while the spool grows, tears and turns to new segments."""
    seeded = random.Random(20261129)
    num_rounds, per_round = 9, 200
    for round_ in range(num_rounds):
        numbers = range(round_ * per_round, (round_ + 1) * per_round)
        body = [line(usage(n)) for n in numbers]
        repeats = [line(usage(n)) for n in seeded.sample(range(numbers.stop), 20)]
        with service.start() as billing:
            billing.until_log_has("started", times=round_ + 1)
            name = segment_name("0a", round_)
            write_segment(service.spool_dir, name, *body, *repeats, body[0][:-9])
            time.sleep(seeded.random() * 0.06)  # no fact to wait for: any moment must do
            billing.kill()
    with service.start() as billing:
        billing.until_log_has("started", times=num_rounds + 1)
        total = num_rounds * per_round
        assert_exactly(service.until(lambda t: t.num_requests == total), total)
        assert billing.terminate() == 0


def test_killed_while_it_removes_what_it_has_posted_it_loses_nothing(service: Service) -> None:
    """Two processes, one of them killed again and again, and segments kept for no time at all."""
    num_segments, per_segment = 40, 50
    with service.start("steady", BILLING_SPOOL_KEEP_S="0") as steady:
        for index in range(num_segments):
            numbers = range(index * per_segment, (index + 1) * per_segment)
            name = segment_name("0a", index)
            write_segment(service.spool_dir, name, *(line(usage(n)) for n in numbers))
            if index % 10 == 9:
                with service.start("killed", BILLING_SPOOL_KEEP_S="0") as killed:
                    killed.until_log_has("started", times=index // 10 + 1)
        total = num_segments * per_segment
        assert_exactly(service.until(lambda t: t.num_requests == total), total)
        newest = service.spool_dir / segment_name("0a", num_segments - 1)
        service.until(lambda _: list(service.spool_dir.iterdir()) == [newest])
        assert steady.terminate() == 0
    assert "billing failed" not in steady.log()


def test_two_processes_on_one_spool_count_once(service: Service) -> None:
    """Started together on a ledger that does not exist yet, while segments appear."""
    with service.start("left") as left, service.start("right") as right:
        for index in range(20):
            lines = (line(usage(n)) for n in range(index * 100, (index + 1) * 100 + 10))
            write_segment(service.spool_dir, segment_name("0a", index), *lines)
            service.until(booked_more_than(index * 100 + 10))
        service.until(lambda t: t.num_requests == 2_010)
        assert [left.terminate(), right.terminate()] == [0, 0]
    summary = service.totals()
    assert summary is not None
    assert_exactly(summary, 2_010)
    assert "batch posted" in left.log() + right.log()
    assert "billing failed" not in left.log() + right.log()


def test_deleting_the_offsets_under_it_changes_no_total(service: Service) -> None:
    write_segment(service.spool_dir, SEGMENT, *(line(usage(n)) for n in range(300)))
    with service.start() as billing:
        service.until(lambda t: t.num_requests == 300)
        service.execute("DELETE FROM source_offsets")
        with (service.spool_dir / SEGMENT).open("ab") as segment:
            segment.write(line(usage(300)))
        assert_exactly(service.until(lambda t: t.num_requests == 301), 301)
        billing.until_log_has("another consumer was first")
        assert billing.terminate() == 0
    assert '"num_repeated":300' in billing.log()


def test_a_new_price_book_rates_what_was_waiting_and_a_broken_one_is_refused(
    service: Service,
) -> None:
    write_segment(service.spool_dir, SEGMENT, line(usage(1, model="new")))
    with service.start() as billing:
        service.until(lambda t: t.num_unpriced_requests == 1)
        service.price_book.write_text("price = [")
        billing.until_log_has("new price book refused")
        wider = BASE_PRICES + BASE_PRICES.replace("smol.1", "new.1").replace(
            "SmolLM2-135M-Instruct", "new"
        )
        service.price_book.write_text(wider)
        summary = service.until(lambda t: t.num_unpriced_requests == 0)
        assert summary.pico_usd == PICO_USD_PER_EVENT
        assert billing.terminate() == 0


def test_a_corrupt_line_is_kept_aside_and_not_quoted_in_the_log(service: Service) -> None:
    write_segment(
        service.spool_dir, SEGMENT, line(usage(1)), b"deadbeef sensitive words\n", line(usage(2))
    )
    with service.start() as billing:
        service.until(lambda t: t.num_requests == 2)
        assert billing.terminate() == 0
    assert '"num_dead":1' in billing.log()
    assert "sensitive" not in billing.log()


def test_a_ledger_that_refuses_for_a_while_costs_only_time(service: Service) -> None:
    """The batch is read again from where it began, as often as it takes."""
    service.spool_dir.mkdir()
    with service.start() as billing:
        billing.until_log_has("started")
        service.execute(
            "CREATE TRIGGER broken BEFORE INSERT ON ledger_entries "
            "BEGIN SELECT RAISE(ABORT, 'out of order'); END"
        )
        write_segment(service.spool_dir, SEGMENT, *(line(usage(n)) for n in range(700)))
        billing.until_log_has("billing paused", times=3)
        assert "out of order" in billing.log()
        summary = service.totals()
        assert summary is not None
        assert_exactly(summary, 0)
        service.execute("DROP TRIGGER broken")
        assert_exactly(service.until(lambda t: t.num_requests == 700), 700)
        assert billing.terminate() == 0


def test_it_ends_when_another_version_has_migrated_its_ledger(service: Service) -> None:
    """It would keep partitions from those that can post."""
    service.spool_dir.mkdir()
    with service.start() as billing:
        billing.until_log_has("started")
        service.execute("UPDATE alembic_version SET version_num = '9999'")
        write_segment(service.spool_dir, SEGMENT, line(usage(1)))
        assert billing.wait() == 1
    last = msgspec.json.decode(billing.log().splitlines()[-1])
    assert last["message"] == "billing stopped"
    assert "found 9999" in last["error"]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "BILLING_LEDGER_URL"),
        ({"BILLING_LEDGER_URL": "sqlite:////nowhere/l.db"}, "BILLING_SPOOL_DIR"),
        ({"BILLING_LEDGER_URL": "mysql://u:hunter2@h/d", "BILLING_SPOOL_DIR": "."}, "ledger URL"),
        (
            {
                "BILLING_LEDGER_URL": "sqlite:///{folder}/l.db",
                "BILLING_SPOOL_DIR": ".",
                "BILLING_PRICE_BOOK": "{folder}/none.toml",
            },
            "none.toml",
        ),
        (
            {
                "BILLING_LEDGER_URL": "sqlite:///{folder}/l.db",
                "BILLING_SPOOL_DIR": ".",
                "BILLING_POLL_INTERVAL_S": "0",
            },
            "greater than 0",
        ),
        (
            {
                "BILLING_LEDGER_URL": "sqlite:///{folder}/l.db",
                "BILLING_SPOOL_DIR": ".",
                "BILLING_SPOOL_KEEP": "hunter2",
            },
            "did you mean BILLING_SPOOL_KEEP_S?",
        ),
    ],
    ids=[
        "nothing",
        "no source",
        "no such database",
        "no price book",
        "no poll interval",
        "misspelt",
    ],
)
def test_a_wrong_setting_ends_it_with_status_2_and_the_reason(
    tmp_path: Path, environment: dict[str, str], message: str
) -> None:
    filled = {name: value.format(folder=tmp_path) for name, value in environment.items()}
    with BillingProcess(tmp_path / "log", **filled) as billing:
        assert billing.wait() == 2
    assert message in billing.log()
    assert "hunter2" not in billing.log()
    assert "Traceback" not in billing.log()


async def test_consumers_of_kafka_killed_at_any_moment_lose_and_double_nothing(
    broker: Broker, service: Service
) -> None:
    """Four partitions, duplicates, two processes, one of them killed again and again."""
    num_rounds, per_round, num_partitions = 2, 600, 4
    topic = await new_topic(broker.bootstrap, num_partitions=num_partitions)
    seeded = random.Random(20261129)
    with service.start("steady", kafka=(broker, topic)) as steady:
        for round_ in range(num_rounds):
            with service.start(f"killed-{round_}", kafka=(broker, topic)) as killed:
                await asyncio.to_thread(killed.until_log_has, "partition assigned")
                last = (round_ + 1) * per_round
                events = [usage(n) for n in range(round_ * per_round, last)]
                events += [usage(n) for n in seeded.sample(range(last), 20)]
                await send_events(broker.bootstrap, topic, events, num_partitions=num_partitions)
                await asyncio.sleep(seeded.random() * 0.1)
                killed.kill()
        total = num_rounds * per_round
        summary = await asyncio.to_thread(service.until, lambda t: t.num_requests == total)
        assert_exactly(summary, total)
        assert steady.terminate() == 0
    assert "billing failed" not in steady.log()


def test_without_a_broker_it_says_so_lives_on_and_stops_when_told(service: Service) -> None:
    with BillingProcess(
        service.price_book.with_name("log"),
        BILLING_LEDGER_URL=service.ledger_url,
        BILLING_KAFKA_BOOTSTRAP=f"127.0.0.1:{free_port()}",
    ) as billing:
        billing.until_log_has("billing paused", times=2)
        assert billing.terminate() == 0


async def test_it_survives_a_restart_of_its_broker(tmp_path: Path, service: Service) -> None:
    folder = tmp_path / "kafka"
    folder.mkdir()
    with running(apache_kafka(kafka_home(), folder)) as broker:
        topic = await new_topic(broker.bootstrap, num_partitions=2)
        with service.start(kafka=(broker, topic)) as billing:
            await send_events(
                broker.bootstrap, topic, [usage(n) for n in range(50)], num_partitions=2
            )
            await asyncio.to_thread(service.until, lambda t: t.num_requests == 50)
            broker.stop()
            broker.start()
            await send_events(
                broker.bootstrap, topic, [usage(n) for n in range(50, 90)], num_partitions=2
            )
            summary = await asyncio.to_thread(service.until, lambda t: t.num_requests == 90)
            assert_exactly(summary, 90)
            assert billing.terminate() == 0
