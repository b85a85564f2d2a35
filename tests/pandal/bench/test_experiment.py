"""What of a run is the generator's load, and what was done before it."""

import asyncio
import io
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from pandal.bench.experiment import measure
from pandal.bench.live import LiveView
from pandal.bench.options import (
    ArrivalKind,
    BenchOptions,
    ClientOptions,
    LoadOptions,
    WorkloadKind,
    WorkloadOptions,
)
from pandal.bench.run import Patience
from pandal.bench.target import parse_target
from pandal.bench.workload import Conversation, Message, Turn
from pandal.errors import NothingMeasured, Unreachable
from tests.pandal.bench.conftest import StartServer
from tests.pandal.bench.reports import TENANT


class Refusing(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(401)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def refusing_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


SILENT = LiveView(lambda text: None, io.StringIO())


@dataclass(frozen=True)
class Observed:
    """Notes how many tasks there are when a prompt is made: with the meter it would be one more."""

    num_tasks: list[int] = field(default_factory=list)
    name: str = "observed"
    turns_per_conversation: int = 1
    tenant_names: frozenset[str] = frozenset()

    def conversation(self, number: int, seed: int) -> Conversation:
        self.num_tasks.append(len(asyncio.all_tasks()))
        return Conversation((Turn((Message("user", "x"),), 1),))


@pytest.mark.parametrize(
    ("rate_per_s", "concurrency"), [(100.0, None), (None, 3)], ids=["open", "closed"]
)
async def test_prompts_are_made_before_the_generator_is_watched(
    start_server: StartServer, rate_per_s: float | None, concurrency: int | None
) -> None:
    server = start_server(0.0, 0.0)
    load = LoadOptions(ArrivalKind.CONSTANT, rate_per_s, concurrency, 8, 30.0, 3, 0.0, 1)
    options = BenchOptions(
        target=parse_target(server.url),
        tenants=(TENANT,),
        client=ClientOptions("m", False, 30.0, 4, 0.0),
        workload=WorkloadOptions(WorkloadKind.FIXED, {}, None),
        load=load,
        prices=None,
    )
    workload = Observed()
    report = await measure(options, workload, Patience(30.0, 0.0), SILENT)
    assert report.total.outcomes == {"completed": 3}
    assert workload.num_tasks == [1, 1, 1]


def two_requests_to(url: str) -> BenchOptions:
    return BenchOptions(
        target=parse_target(url),
        tenants=(TENANT,),
        client=ClientOptions("m", False, 30.0, 4, 0.0),
        workload=WorkloadOptions(WorkloadKind.FIXED, {}, None),
        load=LoadOptions(ArrivalKind.CONSTANT, None, 1, 8, 30.0, 2, 0.0, 1),
        prices=None,
    )


async def test_a_run_of_which_nothing_was_served_shows_no_speed(refusing_url: str) -> None:
    with pytest.raises(NothingMeasured, match=r"each of 2 requests was answered 401$"):
        await measure(two_requests_to(refusing_url), Observed(), Patience(30.0, 0.0), SILENT)


async def test_a_run_at_a_dead_address_says_why_nothing_was_answered() -> None:
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        options = two_requests_to(f"http://127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(Unreachable, match=r"none of 2 requests was answered: connection ref"):
            await measure(options, Observed(), Patience(30.0, 0.0), SILENT)
