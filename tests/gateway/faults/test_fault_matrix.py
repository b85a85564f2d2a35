"""Upstream's fault x streamed or not x retry allowed or not x what the client does.

Of each cell: what the client sees, what the quota has settled, what the breaker makes of it, and
what the usage event says.  Each has a tenant, a model and a replica of its own; a gateway in this
process is shared by those that may retry, and another by those that may not; so are two that
wait no longer than is waited for an upstream that says nothing.
"""

import itertools
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from contracts.usage import Outcome, UsageSource
from gateway.app import Gateway
from gateway.completion import Flow
from gateway.exchange import Exchange
from gateway.settings import ReplicaAddress
from tests.gateway.faults.faults import FAULTS, NUM_WORDS, Fault, Faulty
from tests.gateway.processes import Policies, Valkey
from tests.gateway.scene import Hand, Scene, running, until
from tests.gateway.upstream_server import MODEL, PROMPT_TOKENS, Upstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

IMPATIENCE = {"head_timeout_s": 0.5, "idle_timeout_s": 0.5}
ONE_SHORT_OF_OPEN = 4  # failures that the breaker has seen before: one more opens it
CLIENTS = ("stays", "leaves-before-first-byte", "leaves-mid-stream")


@dataclass(frozen=True)
class Cell:
    fault: Fault
    is_stream: bool
    may_retry: bool
    client: str

    def __str__(self) -> str:
        kind = "stream" if self.is_stream else "whole"
        retry = "retry" if self.may_retry else "no-retry"
        return f"{self.fault.name}-{kind}-{retry}-{self.client}"

    @property
    def has_bytes(self) -> bool:
        """The client has some before the fault."""
        return self.is_stream and self.fault.begin is not None

    @property
    def is_possible(self) -> bool:
        return self.client == "stays" or (self.client == "leaves-mid-stream") == self.has_bytes

    @property
    def is_timed_out(self) -> bool:
        return self.client == "stays" and self.fault.name in ("hangs", "trickles")

    @property
    def is_retried(self) -> bool:
        """By the only replica there is: where it said no, and did not break down over it."""
        return self.may_retry and self.fault.name[0].isdigit()


CELLS = [
    cell
    for fault in FAULTS
    for is_stream in (True, False)
    for may_retry in (True, False)
    for client in CLIENTS
    if (cell := Cell(fault, is_stream, may_retry, client)).is_possible
]


def name_of(cell: Cell) -> str:
    """Of its tenant, its model and its replica."""
    return f"fault-{CELLS.index(cell)}"


def folder_of(cell: Cell) -> str:
    """Of its gateway, among the others."""
    return f"{cell.is_timed_out}-{cell.may_retry}"


@dataclass(frozen=True)
class Expected:
    status: int | None  # None: the client has left, and reads nothing more
    code: str | None  # of the error, as body or as last event
    outcome: Outcome | None  # None: no event
    tokens: int | None  # None: the prompt's are estimated
    breaker: str


def expected(cell: Cell) -> Expected:
    if cell.client != "stays":
        has_words = NUM_WORDS if cell.has_bytes else 0
        return Expected(
            None, None, Outcome.CLIENT_DISCONNECTED, PROMPT_TOKENS + has_words, "closed"
        )
    if cell.is_retried:
        return Expected(200, None, Outcome.COMPLETED, PROMPT_TOKENS + NUM_WORDS, "closed")
    failed, name = Outcome.UPSTREAM_FAILED, cell.fault.name
    if cell.has_bytes and cell.fault.is_dead:
        return Expected(200, "upstream_error", failed, None, "open")
    if name == "error-event" and cell.is_stream:
        return Expected(200, "500", failed, PROMPT_TOKENS + NUM_WORDS, "open")
    if cell.is_timed_out:
        return Expected(504, "upstream_timeout", failed, PROMPT_TOKENS, "open")
    if name.startswith("503"):
        return Expected(503, "server_is_overloaded", None, None, "closed")
    if name == "429-retry-after":
        return Expected(503, "server_is_overloaded", failed, 0, "closed")
    if name == "429":
        return Expected(502, "upstream_error", failed, 0, "closed")
    if name.startswith("error"):
        return Expected(502, "500", failed, PROMPT_TOKENS, "open")
    return Expected(502, "upstream_error", failed, 0, "open")


@dataclass(frozen=True)
class Matrix:
    gateways: Mapping[tuple[bool, bool], Gateway]  # by is_timed_out, may_retry
    upstreams: Mapping[Cell, Upstream]
    folder: Path
    valkey: Valkey

    def scene(self, cell: Cell) -> Scene:
        gateway = self.gateways[cell.is_timed_out, cell.may_retry]
        for _ in range(ONE_SHORT_OF_OPEN):
            gateway.pipeline.retries.breakers.failed(name_of(cell), name_of(cell), None)
        return Scene(gateway, self.folder / folder_of(cell) / "spool", name_of(cell), self.valkey)


@pytest.fixture(scope="module")
def upstreams() -> Iterator[Mapping[Cell, Upstream]]:
    upstreams = {cell: Upstream(name_of(cell)) for cell in CELLS}
    for upstream in upstreams.values():
        upstream.start()
    yield upstreams
    for upstream in upstreams.values():
        upstream.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def matrix(
    tmp_path_factory: pytest.TempPathFactory,
    valkey: Valkey,
    policies: Policies,
    upstreams: Mapping[Cell, Upstream],
) -> AsyncIterator[Matrix]:
    folder = tmp_path_factory.mktemp("matrix")
    for cell in CELLS:
        policies.add(name_of(cell), f"sk-{name_of(cell)}", tokens_per_minute=10**6)
    gateways = {}
    async with AsyncExitStack() as stack:
        for kind in itertools.product((True, False), repeat=2):
            cells = [cell for cell in CELLS if (cell.is_timed_out, cell.may_retry) == kind]
            own = folder / folder_of(cells[0])
            own.mkdir()
            is_timed_out, may_retry = kind
            timeouts = IMPATIENCE if is_timed_out else {}
            gateways[kind] = gateway = await stack.enter_async_context(
                running(
                    own,
                    valkey,
                    policies,
                    clock=Hand().clock,
                    replicas=tuple(
                        ReplicaAddress(name=name_of(cell), url=upstreams[cell].url)
                        for cell in cells
                    ),
                    max_retries=2 if may_retry else 0,
                    retry_budget_ratio=1.0,
                    poll_interval_s=600.0,
                    abort_timeout_s=60.0,
                    **timeouts,
                )
            )
            models = {name_of(cell) for cell in cells}
            await until(lambda g=gateway, m=models: g.pipeline.ready_models() == m)  # type: ignore[misc]
        yield Matrix(gateways, upstreams, folder, valkey)


async def leave(cell: Cell, exchange: Exchange, scene: Scene, upstream: Upstream) -> None:
    """As soon as the client has what the cell says."""
    if cell.has_bytes:
        await until(lambda: scene.transport.written.count(b"word") == NUM_WORDS)
    else:
        await until(lambda: bool(upstream.generations))
    exchange.client_lost()


def seen(written: bytes) -> tuple[int, Any]:
    """The status, and the last document that the client got."""
    head, _, body = written.partition(b"\r\n\r\n")
    status = int(head.split(b" ")[1])
    if b"event-stream" not in head:
        return status, json.loads(body)
    events = [line for line in body.split(b"\r\n") if line.startswith(b"data: ")]
    payloads = [p for event in events for p in event.split(b"\n\n") if p]
    last = payloads[-1].removeprefix(b"data: ")
    return status, "[DONE]" if last == b"[DONE]" else json.loads(last)


def check_view(wanted: Expected, written: bytes, *, is_stream: bool) -> None:
    if wanted.status is None:
        return
    status, last = seen(written)
    assert status == wanted.status
    if wanted.code is not None:
        assert last["error"]["code"] == wanted.code
    elif is_stream:
        assert last == "[DONE]"
    else:
        assert last["choices"]


@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_fault(cell: Cell, matrix: Matrix) -> None:
    wanted, scene, upstream = expected(cell), matrix.scene(cell), matrix.upstreams[cell]
    pipeline = scene.gateway.pipeline
    upstream.behaviour = faulty = Faulty(cell.fault)
    upstream.knows_abort = not cell.fault.is_dead or cell.client != "stays"
    exchange = scene.exchange(stream=cell.is_stream, model=name_of(cell))
    flow: Flow = pipeline.start(exchange)
    if cell.client == "stays":
        faulty.may_act = True
    else:
        await leave(cell, exchange, scene, upstream)
    await until(lambda: flow.is_over)
    faulty.may_act = True
    check_view(wanted, scene.transport.written, is_stream=cell.is_stream)
    assert pipeline.retries.breakers.state(name_of(cell), name_of(cell)) == wanted.breaker
    if wanted.outcome is None:
        assert scene.events() == []
        assert matrix.valkey.settled(name_of(cell)) == {}
        return
    event = await scene.only_event()
    assert event.outcome is wanted.outcome
    if wanted.tokens is None:
        assert event.usage_source is UsageSource.COUNTED
        assert event.output_text_tokens == NUM_WORDS
    else:
        assert event.usage_source is UsageSource.ENGINE
        assert event.total_tokens == wanted.tokens


async def test_an_upstream_that_refuses_connections_has_begun_nothing(
    tmp_path: Path, valkey: Valkey, policies: Policies
) -> None:
    policies.add("fault-refuses", "sk-fault-refuses")
    for number, is_stream in enumerate((True, False)):
        upstream = Upstream()
        upstream.start()
        folder = tmp_path / str(number)
        folder.mkdir()
        async with running(
            folder, valkey, policies, upstream, Hand().clock, poll_interval_s=600.0
        ) as gateway:
            upstream.stop()
            scene_ = Scene(gateway, folder / "spool", "fault-refuses", valkey)
            for _ in range(ONE_SHORT_OF_OPEN):
                gateway.pipeline.retries.breakers.failed(MODEL, "replica-0", None)
            await gateway.pipeline.serve(scene_.exchange(stream=is_stream))
            status, last = seen(scene_.transport.written)
            assert (status, last["error"]["code"]) == (503, "server_is_overloaded")
            assert gateway.pipeline.retries.breakers.state(MODEL, "replica-0") == "open"
            assert scene_.events() == []
            assert valkey.settled("fault-refuses") == {}
