"""A breaker that is half open, and what else goes wrong at that moment."""

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.app import Gateway
from gateway.resilience.breaker import Breakers, BreakerState
from gateway.settings import ReplicaAddress
from tests.gateway.faults.faults import FAULTS, Fault, Faulty
from tests.gateway.processes import Policies, Valkey
from tests.gateway.scene import Hand, Scene, running, until
from tests.gateway.upstream_server import MODEL, Upstream

ILL = "replica-0"
TENANT = "half-open"
DECIDING = ("garbage", "500")
SAYS_NOTHING = ("503", "503-retry-after")


@pytest.fixture(scope="module")
def other() -> Iterator[Upstream]:
    other = Upstream()
    other.start()
    yield other
    other.stop()


@pytest.fixture
async def gateway(
    tmp_path: Path,
    valkey: Valkey,
    policies: Policies,
    upstream: Upstream,
    other: Upstream,
    caplog: pytest.LogCaptureFixture,
) -> AsyncIterator[Gateway]:
    """Before a replica whose breaker is half open, and one that is well."""
    policies.add(TENANT, f"sk-{TENANT}")
    replicas = (
        ReplicaAddress(name=ILL, url=upstream.url),
        ReplicaAddress(name="replica-1", url=other.url),
    )
    caplog.set_level(logging.INFO)
    hand = Hand()
    async with running(
        tmp_path, valkey, policies, upstream, hand.clock, replicas=replicas
    ) as gateway:
        await until(lambda: caplog.messages.count("replica ready") == 2)
        breakers = breakers_of(gateway)
        for _ in range(5):
            breakers.failed(MODEL, ILL, None)
        hand.monotonic_s += 1.5
        assert breakers.state(MODEL, ILL) is BreakerState.HALF_OPEN
        yield gateway


def breakers_of(gateway: Gateway) -> Breakers:
    return gateway.pipeline.retries.breakers


async def serve_until_it_is_asked(
    gateway: Gateway, tmp_path: Path, valkey: Valkey, upstream: Upstream, count: int
) -> None:
    """``count``: how often it has been asked then."""
    scene = Scene(gateway, tmp_path / "spool", TENANT, valkey)
    for number in range(60):
        if len(upstream.generations) >= count:
            return
        scene.transport.written = b""
        messages = [{"role": "user", "content": f"prompt {number} for {count}"}]
        await gateway.pipeline.serve(scene.exchange(messages=messages))
        assert scene.transport.written.startswith(b"HTTP/1.1 200"), "the other one serves"
    raise AssertionError("it is barred for ever")


def faults(*names: str) -> list[Fault]:
    return [fault for fault in FAULTS if fault.name in names]


@pytest.mark.parametrize("fault", faults(*SAYS_NOTHING), ids=lambda fault: str(fault.name))
async def test_a_probe_that_is_turned_away_leaves_it_to_the_next(
    gateway: Gateway, tmp_path: Path, valkey: Valkey, upstream: Upstream, fault: Fault
) -> None:
    upstream.behaviour = faulty = Faulty(fault)
    faulty.may_act = True
    await serve_until_it_is_asked(gateway, tmp_path, valkey, upstream, 1)
    assert breakers_of(gateway).state(MODEL, ILL) is BreakerState.HALF_OPEN
    await serve_until_it_is_asked(gateway, tmp_path, valkey, upstream, 2)
    assert breakers_of(gateway).state(MODEL, ILL) is BreakerState.CLOSED


@pytest.mark.parametrize("fault", faults(*DECIDING), ids=lambda fault: str(fault.name))
async def test_a_probe_that_fails_opens_it_again(
    gateway: Gateway, tmp_path: Path, valkey: Valkey, upstream: Upstream, fault: Fault
) -> None:
    upstream.behaviour = faulty = Faulty(fault)
    faulty.may_act = True
    await serve_until_it_is_asked(gateway, tmp_path, valkey, upstream, 1)
    assert breakers_of(gateway).state(MODEL, ILL) is BreakerState.OPEN
