"""Nothing that was answered is ever forgotten: not by kill, not by outage, not by a full disk."""

import asyncio
import logging
import resource
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contracts.spool import frame, parse_segment_name
from contracts.usage import Outcome
from gateway.outbox.spool import Spool
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat, get, hang_up, post, request_bytes
from tests.gateway.processes import Gateway, Policies, Valkey
from tests.gateway.upstream_server import Generation, Upstream, words
from tests.support.file_limit import file_limit
from tests.support.waiting import PATIENCE_S, eventually


@contextmanager
def full_disk(gateway: Gateway) -> Iterator[None]:
    """No file of the gateway's takes another byte."""
    assert gateway.process is not None
    pid = gateway.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_kill_right_after_an_answer_loses_nothing(
    start_gateway: Callable[..., Gateway],
    make_tenant: Callable[..., Tenant],
    upstream: Upstream,
    is_stream: bool,
) -> None:
    gateway = start_gateway()
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    replies = await asyncio.gather(*(tenant.chat(chat(stream=is_stream)) for _ in range(20)))
    gateway.stop(signal.SIGKILL)
    assert {reply.status for reply in replies} == {200}
    answered = {reply.headers["x-request-id"] for reply in replies}
    assert {event.request_id for event in tenant.events()} == answered
    assert tenant.valkey.settled(tenant.name)["requests"] == 20


async def test_sequence_numbers_have_no_gaps_and_segments_rotate(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    gateway = start_gateway(GATEWAY_SPOOL_SEGMENT_BYTES="1000")
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    for _ in range(4):
        await asyncio.gather(*(tenant.chat(chat()) for _ in range(3)))
    events = tenant.events()
    assert [event.gateway_seq for event in events] == list(range(1, 13))
    assert len({event.event_id for event in events}) == 12
    assert len({event.gateway_boot_id for event in events}) == 1
    segments = sorted(gateway.spool_dir.glob("*.spool"))
    assert [parse_segment_name(s.name)[1] for s in segments] == list(range(len(segments)))
    assert len(segments) > 2
    assert {s.stat().st_mode & 0o777 for s in segments} == {0o600}


@pytest.mark.parametrize("is_replaced", [False, True], ids=["deleted", "replaced"])
async def test_events_go_on_in_a_new_segment_when_theirs_is_gone(
    start_gateway: Callable[..., Gateway],
    make_tenant: Callable[..., Tenant],
    upstream: Upstream,
    is_replaced: bool,
) -> None:
    gateway = start_gateway()
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    (segment,) = gateway.spool_dir.glob("*.spool")
    segment.unlink()
    if is_replaced:
        segment.touch()
    assert (await tenant.chat(chat())).status == 200
    assert len(tenant.events()) == 1


async def test_a_spool_without_its_folder_refuses_until_it_is_back(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    gateway = start_gateway(GATEWAY_SPOOL_HOLD_S="1")
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    shutil.rmtree(gateway.spool_dir)
    for _ in range(2):
        reply = await tenant.chat(chat())
        assert (reply.status, reply.error["code"]) == (503, "metering_unavailable")
    gateway.spool_dir.mkdir()
    await asyncio.to_thread(tenant.only_event)


async def test_an_earlier_boots_segments_are_left_alone(
    start_gateway: Callable[..., Gateway],
    make_tenant: Callable[..., Tenant],
    tmp_path: Path,
    upstream: Upstream,
) -> None:
    spool_dir = tmp_path / "spool"
    spool_dir.mkdir()
    torn = spool_dir / "0000000000000000abcd-000000.spool"
    torn.write_bytes(b"0000")
    gateway = start_gateway(GATEWAY_SPOOL_DIR=str(spool_dir))
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    assert (await tenant.chat(chat())).status == 200
    assert torn.read_bytes() == b"0000"
    assert tenant.only_event()
    assert sorted(spool_dir.glob("*.spool"))[0] == torn


async def test_relaxed_answers_do_not_wait_and_are_recorded_all_the_same(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    """A disk that takes no byte holds up nobody; what was answered meanwhile is on it later."""
    gateway = start_gateway(GATEWAY_DURABILITY="relaxed")
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    with full_disk(gateway):
        assert (await tenant.chat(chat(stream=True))).payloads[-1] == "[DONE]"
        assert tenant.events() == []
    assert tenant.only_event().output_text_tokens == 3


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[Valkey]:
    folder = tmp_path / "own-valkey"
    folder.mkdir()
    valkey = Valkey(folder)
    valkey.start()
    yield valkey
    valkey.stop(signal.SIGKILL)


@pytest.fixture
async def alone(
    own_valkey: Valkey,
    policies: Policies,
    start_gateway: Callable[..., Gateway],
    upstream: Upstream,
) -> AsyncIterator[Tenant]:
    """A tenant whose gateway has a quota store of its own."""
    gateway = start_gateway(
        quota_url=own_valkey.url,
        GATEWAY_QUOTA_SHARE_LEASE_S="0",
        GATEWAY_QUOTA_CALL_DEADLINE_S="3",  # so long does each wait for a frozen one
    )
    policies.add("alone", "sk-alone")
    tenant = Tenant("alone", "sk-alone", gateway, own_valkey)
    await tenant.accepted()
    yield tenant
    policies.remove("alone")


def outages(gateway: Gateway) -> int:
    return sum(str(line["message"]).startswith("quota store") for line in gateway.log_lines())


async def test_without_the_store_nobody_is_admitted(alone: Tenant, own_valkey: Valkey) -> None:
    own_valkey.stop()
    replies = [await alone.chat(chat()) for _ in range(10)]
    for reply in replies:
        assert (reply.status, reply.error["code"]) == (503, "quota_unavailable")
        assert reply.headers["retry-after"] == "1"
    assert (await get(alone.gateway.port, "/ready")).status == 503
    assert outages(alone.gateway) <= 4, "one outage is logged once, not once per request"
    own_valkey.start()
    await alone.accepted()
    assert (await alone.chat(chat())).status == 200
    assert alone.only_event()


async def test_a_frozen_store_is_given_up_on_in_time(alone: Tenant, own_valkey: Valkey) -> None:
    own_valkey.signal(signal.SIGSTOP)
    try:
        replies = await asyncio.gather(*(alone.chat(chat()) for _ in range(20)))
        assert {reply.status for reply in replies} == {503}
    finally:
        own_valkey.signal(signal.SIGCONT)
    await alone.accepted()
    assert (await alone.chat(chat())).status == 200
    assert alone.only_event()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_a_settlement_outlives_an_outage(
    alone: Tenant, own_valkey: Valkey, upstream: Upstream, number: signal.Signals
) -> None:
    """The store goes away while the answer is made: the client still gets it, settled later."""

    async def lose_the_store(generation: Generation) -> None:
        if number == signal.SIGSTOP:
            own_valkey.signal(number)
        else:
            await asyncio.to_thread(own_valkey.stop, number)
        await words(3)(generation)

    upstream.behaviour = lose_the_store
    reply = await alone.chat(chat(stream=True))
    assert reply.payloads[-1] == "[DONE]"
    if number == signal.SIGSTOP:
        own_valkey.signal(signal.SIGCONT)
    else:
        own_valkey.start()
    assert alone.only_event().output_text_tokens == 3


def payload(seq: int) -> bytes:
    return b'{"seq":%d,"padding":"%b"}' % (seq, b"x" * 300)


def spool_bytes(folder: Path) -> bytes:
    (segment,) = folder.glob("*.spool")
    return segment.read_bytes()


async def test_a_full_disk_delays_events_and_loses_none(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "00ab", 1_000_000)
    spool.start()
    await spool.append(payload(spool.next_seq))
    with file_limit(500):
        late = [spool.append(payload(spool.next_seq)) for _ in range(5)]
        await asyncio.to_thread(eventually, lambda: spool.is_failing, "the spool to fail")
        assert not any(committed.is_done for committed in late)
    await asyncio.gather(*late)
    assert not spool.is_failing
    assert await spool.stop(60.0) == 0
    assert spool_bytes(tmp_path) == b"".join(frame(payload(n)) for n in range(1, 7))


async def test_room_in_the_outbox_does_not_mend_a_disk(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "00ab", 1_000_000)
    spool.start()
    with file_limit(0):
        late = spool.append(payload(spool.next_seq))
        await asyncio.to_thread(eventually, lambda: spool.is_failing, "the spool to fail")
        spool.hold_back(True)
        spool.hold_back(False)
        assert spool.is_failing
    await late
    assert not spool.is_failing
    spool.hold_back(True)
    await spool.append(payload(spool.next_seq))
    assert spool.is_failing, "a write makes no room"
    assert await spool.stop(60.0) == 0


async def test_a_spool_stopped_on_a_full_disk_says_what_is_missing(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "00ab", 1_000_000)
    spool.start()
    with file_limit(0):
        spool.append(payload(spool.next_seq))
        await asyncio.to_thread(eventually, lambda: spool.is_failing, "the spool to fail")
        num_missing = await spool.stop(0.05)
    assert num_missing == 1


class HangingWriter(logging.Filter):
    """A writer thread that stops in the middle, as in a sync of a disk that hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.has_hung = threading.Event()
        self.may_go_on = threading.Event()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.threadName == "spool-writer":
            self.has_hung.set()
            self.may_go_on.wait(60)
        return True


def writer_has_ended() -> bool:
    return all(thread.name != "spool-writer" for thread in threading.enumerate())


async def test_a_writer_that_hangs_does_not_keep_the_spool_from_stopping(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hanging = HangingWriter()
    log = logging.getLogger("gateway.outbox.spool")
    log.addFilter(hanging)
    spool = Spool(tmp_path / "spool", "00ab", 1)
    spool.start()
    (tmp_path / "spool").rename(tmp_path / "moved")  # the writer tells of it, and hangs in that
    spool.append(payload(spool.next_seq))
    try:
        assert await asyncio.to_thread(hanging.has_hung.wait, PATIENCE_S)
        assert await spool.stop(0.05) == 1
        assert "does not stop" in caplog.text
    finally:
        hanging.may_go_on.set()
        log.removeFilter(hanging)
        await asyncio.to_thread(eventually, writer_has_ended, "the writer's end")


async def test_while_the_spool_fails_new_requests_are_refused(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    gateway = start_gateway(GATEWAY_SPOOL_HOLD_S="2")
    tenant = make_tenant(on=gateway)
    await tenant.accepted()
    with full_disk(gateway):
        held = await tenant.chat(chat())
        assert (held.status, held.error["code"]) == (503, "metering_unavailable")
        streamed = await tenant.chat(chat(stream=True))
        assert (streamed.status, streamed.error["code"]) == (503, "metering_unavailable")
        assert len(upstream.generations) == 1, "the second was refused before any work"
        readiness = (await get(gateway.port, "/ready")).document
        assert "the spool cannot be written" in readiness["reasons"]
    await tenant.accepted()
    assert tenant.only_event().output_text_tokens == 3
    assert (await tenant.chat(chat())).status == 200


async def test_a_client_lost_while_its_answer_is_held_is_billed_in_full(
    tenant: Tenant, upstream: Upstream
) -> None:
    upstream.behaviour = words(3)
    _, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    writer.write(request_bytes(chat(), tenant.key))
    await asyncio.to_thread(eventually, lambda: bool(upstream.generations), "the request")
    await hang_up(writer)
    event = tenant.only_event()
    assert event.outcome in (Outcome.COMPLETED, Outcome.CLIENT_DISCONNECTED)
    assert event.output_text_tokens == 3
    assert (await post(tenant.gateway.port, chat(), tenant.key)).status == 200
