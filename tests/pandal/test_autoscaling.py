"""The autoscaler's loop over real processes: up with demand, down without cutting a stream."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from autoscaler.cluster import Address
from autoscaler.engine_metrics import ENGINE_READING, EngineSample
from autoscaler.errors import ClusterRefused
from autoscaler.reconciler import Reconciler, Report, Rules, Sources
from autoscaler.scrape import PodPages
from pandal.autoscaling import Alone, is_ready, local_policy
from pandal.child import ChildSpec
from pandal.errors import BadOption
from pandal.installation import check_options
from pandal.local_cluster import VARIANT, LocalCluster
from pandal.plan import OwnReplica, UpOptions
from pandal.scaling_news import ScalingNews
from pandal.supervisor import Supervisor
from tests.support.ports import free_port

PATIENCE_S = 60.0
ENGINE = Path(__file__).with_name("tiny_engine.py")


async def until_true(is_true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_true():  # noqa: ASYNC110 - the state is other processes'
            await asyncio.sleep(0.02)


class Stream:
    """An answer that goes on until it is closed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, replica: OwnReplica) -> "Stream":
        reader, writer = await asyncio.open_connection("127.0.0.1", replica.port)
        writer.write(b"GET /stream HTTP/1.0\r\n\r\n")
        stream = cls(reader, writer)
        await stream.token()
        return stream

    async def token(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self._reader.readuntil(b"token\n")

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


class Fleet:
    """Three places, one filled; the clock goes ten seconds a tick, the processes as they do."""

    def __init__(self, reports: object, folder: Path) -> None:
        self.supervisor = Supervisor(
            reports,  # type: ignore[arg-type]  # the recorder of conftest
            monotonic_s=asyncio.get_running_loop().time,
            sleep=asyncio.sleep,
        )
        self.supervisor.mark_ready()
        self.folder = folder
        self.places = [OwnReplica(f"replica-{i}", free_port()) for i in range(3)]
        self.now_s = 1_800_000_000.0
        self.ticks: list[Report] = []
        self.lines: list[str] = []
        self.news = ScalingNews(local_policy(1, 3))
        self.streams: list[Stream] = []
        self.start(self.places[0])
        self.cluster = LocalCluster(
            self.places,
            1,
            supervisor=self.supervisor,
            start=self.start,
            is_ready=is_ready,
            now_s=lambda: self.now_s,
        )
        self.reconciler = Reconciler(
            Rules(local_policy(1, 3), drain_deadline_s=0.0),
            self.cluster,
            sources=Sources(self.scrape),
            clock=lambda: self.now_s,
            fence=Alone(),
            report=self.note,
        )

    def note(self, report: Report) -> None:
        self.ticks.append(report)
        self.lines.extend(self.news.lines(report))

    def start(self, replica: OwnReplica) -> None:
        self.supervisor.start(
            ChildSpec(
                name=replica.name,
                command=(sys.executable, "-I", str(ENGINE), str(replica.port)),
                environment={},
                log_path=self.folder / f"{replica.name}.log",
                death_signal=9,  # type: ignore[arg-type]
            )
        )

    async def scrape(self, found: Mapping[str, Address]) -> Mapping[str, EngineSample | None]:
        return await PodPages(PATIENCE_S).read(found, ENGINE_READING)

    async def tick(self) -> None:
        self.now_s += 10.0
        await self.reconciler.tick()

    async def open(self, replica: OwnReplica) -> Stream:
        self.streams.append(await Stream.open(replica))
        return self.streams[-1]

    async def ready(self) -> list[OwnReplica]:
        return [p for p in self.places if await is_ready(Address("127.0.0.1", p.port))]

    async def until_ready(self, count: int) -> None:
        await until_true(lambda: self._has_ready(count))

    async def _has_ready(self, count: int) -> bool:
        return len(await self.ready()) == count

    async def runs(self, count: int) -> bool:
        """So many processes, those that drain among them."""
        return sum(self.supervisor.has(place.name) for place in self.places) == count

    async def tick_until(self, count: int, most_ticks: int) -> None:
        """Until the count is ordered."""
        for _ in range(most_ticks):
            await self.tick()
            (variant,) = self.ticks[-1].state.variants
            if variant.num_ordered == count:
                return
        raise AssertionError(f"{variant.num_ordered} replicas, not {count}")


@asynccontextmanager
async def fleet_of(reports: object, folder: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(reports, folder)
    try:
        await fleet.until_ready(1)
        yield fleet
    finally:
        for stream in fleet.streams:
            await stream.close()
        names = [place.name for place in fleet.places if fleet.supervisor.has(place.name)]
        await fleet.supervisor.stop(names, patience_s=0, hurry=asyncio.Event())


async def test_one_to_three_to_one_while_a_long_stream_lives(reports, tmp_path: Path) -> None:
    async with fleet_of(reports, tmp_path) as fleet:
        await fleet.tick()
        streams = [await fleet.open(fleet.places[0]) for _ in range(40)]
        await fleet.tick_until(3, most_ticks=10)
        assert fleet.lines[0].startswith("replicas 1 -> ")
        await fleet.until_ready(3)
        long = [await fleet.open(place) for place in fleet.places]
        for stream in streams:
            await stream.close()
        await fleet.tick_until(1, most_ticks=60)
        await fleet.until_ready(1)
        for stream in long:
            assert (await stream.token()).endswith(b"token\n")
        assert await fleet.runs(3), "two drain, and live as long as their streams"
        for stream in long:
            await stream.close()
        await until_true(lambda: fleet.runs(1))
        down = [line for line in fleet.lines if "3 -> 2" in line or "2 -> 1" in line]
        assert len(down) == 2
        for line in down:
            assert re.search(r"at most \d+ tokens/s needed for \d+ s; replica-\d drains$", line)
        _ = [await fleet.open((await fleet.ready())[0]) for _ in range(40)]
        await fleet.tick_until(3, most_ticks=10)
        await fleet.until_ready(3)


async def test_a_count_that_is_not_what_was_seen_is_refused(reports, tmp_path: Path) -> None:
    async with fleet_of(reports, tmp_path) as fleet:
        with pytest.raises(ClusterRefused, match="the count is 1, not 2"):
            await fleet.cluster.set_count(VARIANT, seen=2, wanted=3)
        with pytest.raises(ClusterRefused, match="gone"):
            await fleet.cluster.cordon("replica-9", at_s=0.0)


async def test_watching_goes_on_after_a_replica_was_retired(reports, tmp_path: Path) -> None:
    async with fleet_of(reports, tmp_path) as fleet:
        watching = asyncio.create_task(fleet.supervisor.watch())
        await fleet.cluster.set_count(VARIANT, seen=1, wanted=2)
        await fleet.until_ready(2)
        await fleet.cluster.observe()
        await fleet.cluster.release("replica-1", released_to=1)
        await fleet.cluster.set_count(VARIANT, seen=2, wanted=1)
        await until_true(lambda: fleet.runs(1))
        assert not watching.done()
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


@pytest.mark.parametrize(
    ("most", "dev"), [(1, ()), (3, ("http://127.0.0.1:9",))], ids=["fewer", "not ours"]
)
def test_what_cannot_be_scaled_is_refused(most: int, dev: tuple[str, ...]) -> None:
    options = UpOptions(
        model="m", num_replicas=2, port=8080, data_dir=None, is_once=False,  # type: ignore[arg-type]
        dev_replica_urls=dev, kafka_bootstrap=None, model_cache=None, precision="auto",
        kv_cache_dtype="auto", autoscale_to=most,
    )  # fmt: skip
    with pytest.raises(BadOption, match="--autoscale"):
        check_options(options)
