"""A Prometheus in place of scraping: its API over real HTTP, and what is made of old news."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from autoscaler.cluster import Address, ClusterView
from autoscaler.engine_metrics import ENGINE_READING, EngineSample
from autoscaler.exposition import parse
from autoscaler.gateway_metrics import GATEWAY_READING
from autoscaler.observe import GatewaySample, Observer
from autoscaler.pages import Reading
from autoscaler.part_size import FEWEST_PODS, GOOD_LOOKS
from autoscaler.pool import Phase, Replica, VariantState
from autoscaler.prometheus import DEADLINE_RATIO, MAX_AT_ONCE, Prometheus
from tests.autoscaler.test_sources import SAMPLE, SGLANG, VLLM

promql = pytest.importorskip("promql_parser", reason="a package of the dev extra")

Series = dict[str, Any]
NOWHERE = Address("127.0.0.1", 9)
UP = Reading(("up",), lambda families, _: families["up"][0].value)
DOWN = Reading(("down",), lambda families, _: families["down"][0].value)


class Server:
    """Answers instant queries of one range selector by name and pod, as Prometheus does."""

    def __init__(self) -> None:
        self.series: list[Series] = []
        self.queries: list[str] = []
        self.methods: list[str] = []
        self.answer: bytes | None = None  # in place of a right one
        self.most_pods: int | None = None  # in one query
        self.silent_of: str | None = None  # pods of which nothing is ever told
        self.num_at_once = self.most_at_once = 0

    def scraped(self, pod: str, page: str, at_s: float, **labels: str) -> None:
        for line in page.splitlines():
            if line.startswith("#"):
                continue
            (name, (sample,)), *_ = ((n, s) for n, s in parse_exact(line).items())
            told = {"__name__": name, "namespace": "ns", "pod": pod, **sample.labels, **labels}
            self._append(told, at_s, str(sample.value))

    def _append(self, labels: dict[str, str], at_s: float, value: str) -> None:
        for known in self.series:
            if known["metric"] == labels:
                known["values"].append([at_s, value])
                return
        self.series.append({"metric": labels, "values": [[at_s, value]]})

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Address]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with server:
            yield Address(host, port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError, OSError):  # who asked has gone
            await self._answer(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path = head.split()[:2]
        (length,) = re.findall(r"Content-Length: (\d+)", head)
        form = (await reader.readexactly(int(length))).decode()
        target = urlsplit(path)
        assert target.path == "/prefix/api/v1/query"
        assert method == ("POST" if form else "GET")
        (query,) = parse_qs(form or target.query)["query"]
        self.queries.append(query)
        self.methods.append(method)
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        try:
            if self.silent_of is not None and re.search(self.silent_of, query):
                await reader.read()  # until whoever asked goes away
            writer.write(self._answered(query) if self.answer is None else self.answer)
            await writer.drain()
        finally:
            self.num_at_once -= 1

    def _answered(self, query: str) -> bytes:
        selector = promql.parse(query)  # a range selector, or this raises
        wanted = {m.name: m.value for m in selector.vector_selector.matchers.matchers}
        num_pods = wanted["pod"].count("|") + 1
        if self.most_pods is not None and num_pods > self.most_pods:
            return b"HTTP/1.0 422 Unprocessable Entity\r\n\r\ntoo many samples"
        found = [
            series
            for series in self.series
            if all(re.fullmatch(regex, series["metric"][k]) for k, regex in wanted.items())
        ]
        body = {"status": "success", "data": {"resultType": "matrix", "result": found}}
        return b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(body).encode()


def parse_exact(line: str) -> dict[str, Any]:
    """The line's sample by the name that it has, colon and all."""
    name = re.split(r"[{ ]", line)[0]
    return {name: next(iter(parse(line).values()))}


@pytest.fixture
def server() -> Server:
    return Server()


def scraped_pods(server: Server, count: int) -> dict[str, Address]:
    pods = {f"pod-{number:04}": NOWHERE for number in range(count)}
    for pod in pods:
        server.scraped(pod, "up 1", 10.0)
    return pods


def num_pods(query: str) -> int:
    selector = promql.parse(query).vector_selector
    (pods,) = (m.value for m in selector.matchers.matchers if m.name == "pod")
    return int(pods.count("|")) + 1


def asking(address: Address) -> Prometheus:
    return Prometheus(address, path="/prefix", namespace="ns", timeout_s=60.0)


@pytest.mark.parametrize(
    "page", [VLLM, VLLM.replace("vllm:", "vllm_"), SGLANG], ids=["vllm:", "vllm_", "sglang"]
)
async def test_a_pods_last_scrape_is_its_sample(server: Server, page: str) -> None:
    server.scraped("a.b-0", page.replace(" 7.0", " 9.0"), 100.0)
    server.scraped("a.b-0", page, 115.0)
    server.scraped("axb-0", page, 115.0)
    async with server.served() as address:
        pods = {"a.b-0": NOWHERE, "gone": NOWHERE}
        found = await asking(address).read(pods, ENGINE_READING)
    assert found == {"a.b-0": replace(SAMPLE, taken_at_s=115.0), "gone": None}


async def test_a_series_that_ended_and_a_second_job_are_not_counted_in(server: Server) -> None:
    server.scraped("p", 'vllm:request_success_total{finished_reason="abort"} 70', 85.0)
    server.scraped("p", VLLM, 100.0, job="one", instance="x")
    server.scraped("p", VLLM, 99.0, job="two", instance="y")
    async with server.served() as address:
        found = await asking(address).read({"p": NOWHERE}, ENGINE_READING)
    assert found["p"] == replace(SAMPLE, taken_at_s=100.0)


async def test_a_gateways_page_is_told_too(server: Server) -> None:
    text = (
        'pandal_gateway_requests_total{endpoint="chat",status="200"} 7\n'
        'pandal_gateway_time_to_first_token_seconds_bucket{le="+Inf"} 6\n'
        "pandal_gateway_active_requests 2\npandal_gateway_waiting_requests 1\n"
    )
    server.scraped("g", text, 50.0)
    async with server.served() as address:
        found = await asking(address).read({"g": NOWHERE}, GATEWAY_READING)
    assert found == {"g": GatewaySample(7, 1, 2, {float("inf"): 6.0}, 50.0)}


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 503 Busy\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n<html>",
        b'HTTP/1.0 200 OK\r\n\r\n{"status":"error","error":"query timed out"}',
        b'HTTP/1.0 200 OK\r\n\r\n{"data":{"result":[{"metric":{"pod":"p"},"values":[]}]}}',
        b'HTTP/1.0 200 OK\r\n\r\n{"data":{"result":[{"metric":{"pod":"p"},"values":[[1,"x"]]}]}}',
        b"HTTP/1.0 200 OK\r\n\r\n" + b" " * (5 * 1024 * 1024),
    ],
    ids=["busy", "page", "error", "empty", "no number", "endless"],
)
async def test_what_is_no_answer_is_unknown(server: Server, answer: bytes) -> None:
    server.answer = answer
    async with server.served() as address:
        assert await asking(address).read({"p": NOWHERE}, ENGINE_READING) == {"p": None}
    assert await asking(address).read({"p": NOWHERE}, ENGINE_READING) == {"p": None}, "it is gone"


async def test_many_pods_are_asked_of_in_parts(server: Server) -> None:
    pods = {f"pod-{number}": NOWHERE for number in range(250)}
    for pod in pods:
        server.scraped(pod, VLLM, 10.0)
    async with server.served() as address:
        found = await asking(address).read(pods, ENGINE_READING)
    assert server.methods == ["POST", "POST", "GET"], "names of a hundred pods are a long path"
    assert None not in found.values()
    assert set(found) == set(pods)


async def test_what_is_too_much_for_one_answer_is_asked_in_halves(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    pods = scraped_pods(server, 100)
    server.most_pods = 30
    async with server.served() as address:
        source = asking(address)
        for num_queries in (1 + 1 + 4, 4):  # of 100, of 50, of 25
            server.queries.clear()
            assert None not in (await source.read(pods, UP)).values()
            assert len(server.queries) == num_queries
        assert caplog.records == []
        server.most_pods = 0
        assert set((await source.read(pods, UP)).values()) == {None}
    assert [r.message for r in caplog.records] == ["prometheus does not tell"]


async def test_a_store_that_is_away_for_a_moment_costs_few_queries_and_is_forgotten(
    server: Server,
) -> None:
    pods = scraped_pods(server, 200)
    async with server.served() as address:
        source = asking(address)
        server.most_pods = 0
        assert set((await source.read(pods, UP)).values()) == {None}
        assert min(map(num_pods, server.queries)) >= FEWEST_PODS
        server.most_pods = None
        counts = []
        for _ in range(4 * GOOD_LOOKS + 1):
            server.queries.clear()
            assert None not in (await source.read(pods, UP)).values()
            counts.append(len(server.queries))
    assert counts[::GOOD_LOOKS] == [20, 10, 5, 3, 2], "of 10, 20, 40, 80 and 100 pods"


async def test_one_readings_refusals_do_not_shrink_anothers(server: Server) -> None:
    pods = scraped_pods(server, 100)
    async with server.served() as address:
        source = asking(address)
        server.most_pods = 0
        await source.read(pods, DOWN)
        server.most_pods = None
        server.queries.clear()
        await source.read(pods, UP)
    assert list(map(num_pods, server.queries)) == [100]


async def test_a_look_ends_in_time_and_few_queries_run_at_once(server: Server) -> None:
    pods = scraped_pods(server, 1_000)
    async with server.served() as address:
        source = Prometheus(address, path="/prefix", namespace="ns", timeout_s=1.0)
        server.silent_of = r"0[1-9]\d\d"  # all but the first hundred
        found = await source.read(pods, UP)
    told = {pod for pod, sample in found.items() if sample is not None}
    assert told == {f"pod-{number:04}" for number in range(100)}
    assert server.most_at_once <= MAX_AT_ONCE
    assert len(server.queries) <= MAX_AT_ONCE * (DEADLINE_RATIO + 1) + 1, "one timeout each"


async def test_who_does_not_answer_is_said_once_and_so_is_its_end(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "autoscaler.prometheus")
    server.scraped("p", VLLM, 10.0)
    async with server.served() as address:
        source = asking(address)
        for answer in (b"HTTP/1.0 503 secret\r\n\r\nsecret", b"", None, None):
            server.answer = answer
            await source.read({"p": NOWHERE}, ENGINE_READING)
    said = [(record.message, getattr(record, "error", None)) for record in caplog.records]
    assert said == [("prometheus does not tell", "status 503"), ("prometheus tells again", None)]


def test_the_same_sample_again_is_no_news_and_its_rate_stays() -> None:
    """Looks every ten seconds at what is scraped every fifteen."""
    view = ClusterView((VariantState("v", 1, (Replica("p", Phase.READY),)),))
    observer, rates, finished = Observer(), [], []
    for look in range(8):
        taken_at_s = 15.0 * (10 * look // 15)
        done = 2.0 * taken_at_s  # two requests a second, of a hundred tokens
        engine = EngineSample(4, 0, 0.1, 0.0, 100 * done, done, {1.0: done}, taken_at_s)
        gateway = GatewaySample(done, 0, 0, {1.0: done}, taken_at_s)
        state = observer.look(view, {"p": engine}, 10.0 * look, {"g": gateway})
        rates.append([load.tokens_per_s for load in state.loads])
        finished.append(state.ttft and state.ttft.num_samples)
        if state.demand is not None:
            assert state.demand.num_arrived == pytest.approx(20.0)
    assert rates == [[None]] * 2 + [[200.0]] * 6
    assert finished[-1] == 120, "four scrapes of thirty, each once"
