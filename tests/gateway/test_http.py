"""HTTP/1.1 as clients really send it, on the data plane and beside it."""

import asyncio
from collections.abc import Callable

import pytest

from tests.gateway.conftest import Tenant
from tests.gateway.http_client import Reply, chat, get, hang_up, read_reply, request_bytes, send
from tests.gateway.processes import Gateway
from tests.gateway.upstream_server import Upstream, words
from tests.support.waiting import PATIENCE_S, eventually


async def exchange(port: int, request: bytes, num_replies: int) -> list[Reply]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    replies = [await read_reply(reader) for _ in range(num_replies)]
    writer.close()
    await writer.wait_closed()
    return replies


async def test_pipelined_requests_are_answered_in_order(tenant: Tenant) -> None:
    """Both planes on one connection, in one packet."""
    models = f"GET /v1/models HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {tenant.key}\r\n\r\n"
    request = (
        request_bytes(chat(), tenant.key)
        + models.encode()
        + request_bytes(chat(stream=True), tenant.key)
        + request_bytes(chat(), "sk-nobody")
        + models.encode() * 2
        + request_bytes(chat(), tenant.key)
    )
    replies = await exchange(tenant.gateway.port, request, 7)
    assert [r.status for r in replies] == [200, 200, 200, 401, 200, 200, 200]
    kinds = [r.headers["content-type"].split(";")[0] for r in replies]
    assert kinds[2] == "text/event-stream"
    assert len(tenant.events()) == 3


async def test_a_request_in_single_bytes_is_understood(tenant: Tenant) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    for byte in request_bytes(chat(), tenant.key):
        writer.write(bytes([byte]))
        await writer.drain()
    assert (await read_reply(reader)).status == 200
    writer.close()
    await writer.wait_closed()


async def test_a_chunked_body_is_understood(tenant: Tenant) -> None:
    whole = request_bytes(chat(), tenant.key)
    head, _, body = whole.partition(b"\r\n\r\n")
    head = head.replace(b"content-length: %d" % len(body), b"transfer-encoding: chunked")
    chunks = b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (body[:5], len(body) - 5, body[5:])
    assert (await send(tenant.gateway.port, head + b"\r\n\r\n" + chunks)).status == 200


@pytest.mark.parametrize("is_behind_another", [False, True], ids=["first", "pipelined"])
async def test_expect_100_continue_is_answered(tenant: Tenant, is_behind_another: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    if is_behind_another:
        writer.write(request_bytes(chat(), tenant.key))
    head, _, body = request_bytes(chat(), tenant.key, expect="100-continue").partition(b"\r\n\r\n")
    writer.write(head + b"\r\n\r\n")
    if is_behind_another:
        assert (await read_reply(reader)).status == 200
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await read_reply(reader)).status == 200
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_asks_first_is_refused_before_it_sends(tenant: Tenant) -> None:
    request = request_bytes(chat("x" * 250_000), tenant.key, expect="100-continue")
    head = request.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    writer.write(head)
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    await hang_up(writer)


async def test_a_client_that_sends_before_it_reads_gets_its_413(tenant: Tenant) -> None:
    request = request_bytes(b"x" * 20_000_000, tenant.key)
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    writer.write(request)
    await writer.drain()
    assert (await read_reply(reader)).status == 413
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_connection_close_is_obeyed(tenant: Tenant) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    writer.write(request_bytes(chat(stream=True), tenant.key, connection="close"))
    reply = await read_reply(reader)
    assert reply.headers["connection"] == "close"
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_a_connection_that_idles_too_long_is_closed(
    start_gateway: Callable[..., Gateway], make_tenant: Callable[..., Tenant]
) -> None:
    tenant = make_tenant(on=start_gateway(GATEWAY_KEEP_ALIVE_TIMEOUT_S="3"))
    await tenant.accepted()
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    for _ in range(2):
        writer.write(request_bytes(chat(), tenant.key))
        assert (await read_reply(reader)).status == 200
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    writer.close()
    await writer.wait_closed()


async def test_many_refusals_in_one_packet_are_answered_one_after_the_other(
    tenant: Tenant,
) -> None:
    """Each is answered as it is begun, so they must not nest."""
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    writer.write(request_bytes(chat(stream=True), tenant.key))
    writer.write(request_bytes(chat(), None) * 1_500)
    statuses = [(await read_reply(reader)).status for _ in range(1_501)]
    assert statuses == [200] + [401] * 1_500
    writer.close()
    await writer.wait_closed()


async def test_an_http_1_0_client_gets_no_chunks(tenant: Tenant) -> None:
    request = request_bytes(chat(stream=True), tenant.key).replace(b"HTTP/1.1", b"HTTP/1.0")
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    writer.write(request)
    answer = await reader.read()
    assert b"transfer-encoding" not in answer
    assert answer.endswith(b"data: [DONE]\n\n")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"GARBAGE\r\n\r\n", id="garbage"),
        pytest.param(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 5\r\n"
            b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            id="both-lengths",
        ),
        pytest.param(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 5\r\n"
            b"content-length: 6\r\n\r\nhello!",
            id="two-lengths",
        ),
        pytest.param(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: -5\r\n\r\n",
            id="negative-length",
        ),
        pytest.param(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost : g\r\ncontent-length: 0\r\n\r\n",
            id="space-before-colon",
        ),
        *(
            pytest.param(b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\n" + rest, id=name)
            for name, rest in (
                ("same-length-twice", b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}"),
                ("list-of-lengths", b"content-length: 2, 2\r\n\r\n{}"),
                ("signed-length", b"content-length: +2\r\n\r\n{}"),
                ("folded-header", b"x: a\r\n b\r\ncontent-length: 0\r\n\r\n"),
                ("folded-encoding", b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
                ("lookalike-encoding", b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n"),
                ("chunked-not-last", b"transfer-encoding: chunked, x\r\n\r\n0\r\n\r\n"),
                ("bare-lf", b"x: a\ncontent-length: 0\r\n\r\n"),
                ("bare-cr", b"x: a\rcontent-length: 0\r\n\r\n"),
                ("bare-lf-in-chunk", b"transfer-encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n"),
                ("hexadecimal-mark", b"transfer-encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n"),
                ("nul", b"x: \0\r\ncontent-length: 0\r\n\r\n"),
            )
        ),
    ],
)
async def test_malformed_requests_are_refused(tenant: Tenant, request_: bytes) -> None:
    reply = await send(tenant.gateway.port, request_)
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    assert reply.headers["connection"] == "close"
    assert reply.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("hosts", [b"", b"host: g\r\nHost: g\r\n"], ids=["no-host", "two-hosts"])
@pytest.mark.parametrize(
    "line", [b"POST /v1/chat/completions", b"GET /health"], ids=["data-plane", "control-plane"]
)
async def test_a_request_names_one_host(tenant: Tenant, line: bytes, hosts: bytes) -> None:
    request = line + b" HTTP/1.1\r\n" + hosts + b"content-length: 2\r\n\r\n{}"
    reply = await send(tenant.gateway.port, request)
    assert reply.status == 400
    assert "'Host'" in reply.error["message"]
    assert reply.headers["x-request-id"].startswith("req_")


ONCE = ["Authorization", "idempotency-key", "X-Session-ID", "x-pandal-cache", "x-pandal-explain"]


@pytest.mark.parametrize("name", ONCE)
async def test_a_header_that_decides_comes_once(
    tenant: Tenant, upstream: Upstream, name: str
) -> None:
    """Refused in its turn, and whatever is behind it with it."""
    value = f"Bearer {tenant.key}" if name == "Authorization" else "k"
    line = f"{name}: {value}\r\n".encode()
    good = request_bytes(chat(), tenant.key)
    twice = good.replace(b"content-length", line * 2 + b"content-length")
    replies = await exchange(tenant.gateway.port, good + twice + good, 2)
    assert [reply.status for reply in replies] == [200, 400]
    assert replies[1].error["message"] == f"Send the header '{name.lower()}' once."
    assert replies[1].headers["connection"] == "close"
    assert len(upstream.generations) == 1


async def test_blanks_around_a_value_are_none_of_it(tenant: Tenant, upstream: Upstream) -> None:
    traceparent = f"00-{'a' * 32}-{'b' * 16}-01"
    request = request_bytes(
        chat(),
        tenant.key,
        expect="100-continue ",
        idempotency_key="k\t ",
        traceparent=f"\t {traceparent} \t",
    )
    head, _, body = request.partition(b"\r\n\r\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    writer.write(head + b"\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await read_reply(reader)).status == 200
    writer.close()
    await writer.wait_closed()
    assert upstream.generations[-1].received.headers["traceparent"] == traceparent


async def test_a_list_of_models_is_for_one_key(tenant: Tenant) -> None:
    line = f"authorization: Bearer {tenant.key}\r\n"
    request = f"GET /v1/models HTTP/1.1\r\nhost: g\r\n{line * 2}\r\n".encode()
    reply = await send(tenant.gateway.port, request)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")


async def test_an_http_1_0_client_need_not_name_a_host(tenant: Tenant) -> None:
    reply = await send(tenant.gateway.port, b"GET /health HTTP/1.0\r\n\r\n")
    assert reply.status == 200
    request = b"GET /health HTTP/1.0\r\nhost: g\r\nhost: h\r\n\r\n"
    assert (await send(tenant.gateway.port, request)).status == 400


async def test_garbage_behind_a_good_request_does_not_spoil_it(
    tenant: Tenant, upstream: Upstream
) -> None:
    upstream.behaviour = words(5, pause_s=0.02)
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.gateway.port)
    writer.write(request_bytes(chat(stream=True), tenant.key))
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"\x00\x01\x02 garbage\r\n\r\n")
    assert b"[DONE]" in await reader.read()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    "beginning",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"POST /v1/chat/completions HTTP/1.1\r\nhost:", id="half-a-head"),
        pytest.param(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 9\r\n\r\n{",
            id="half-a-body",
        ),
        pytest.param(b"GET /health HTTP/1.1\r\nhost:", id="beside-the-data-plane"),
    ],
)
async def test_a_request_that_does_not_arrive_is_given_up_on(
    impatient: Tenant, beginning: bytes
) -> None:
    reply = await send(impatient.gateway.port, beginning)
    assert (reply.status, reply.error["code"]) == (408, "request_timeout")
    request_id = reply.headers["x-request-id"]

    def is_logged() -> bool:
        lines = impatient.gateway.log_lines()
        return any((r.get("request_id"), r.get("status")) == (request_id, 408) for r in lines)

    await asyncio.to_thread(eventually, is_logged, "the refusal in the log")


@pytest.mark.parametrize("num_lines", [1, 500], ids=["one-long-line", "many-lines"])
async def test_endless_headers_are_refused(tenant: Tenant, num_lines: int) -> None:
    line = b"x-padding: " + b"x" * (200_000 // num_lines) + b"\r\n"
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\n" + line * num_lines
    reply = await send(tenant.gateway.port, head)
    assert (reply.status, reply.error["code"]) == (431, "headers_too_large")
    assert reply.headers["x-request-id"].startswith("req_")


async def test_a_body_too_large_waits_for_its_turn_to_be_refused(
    tenant: Tenant, upstream: Upstream
) -> None:
    upstream.behaviour = words(5, pause_s=0.02)
    big = request_bytes(chat("x" * 250_000), tenant.key)
    replies = await exchange(tenant.gateway.port, request_bytes(chat(), tenant.key) + big, 2)
    assert [reply.status for reply in replies] == [200, 413]
    assert len({reply.headers["x-request-id"] for reply in replies}) == 2


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
async def test_a_wrong_method_gets_405(tenant: Tenant, method: str) -> None:
    reply = await get(tenant.gateway.port, "/v1/chat/completions", method=method)
    assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
    assert reply.headers["x-request-id"].startswith("req_")
    assert reply.headers["allow"] == "POST"


async def test_a_wrong_method_beside_the_data_plane_gets_405(tenant: Tenant) -> None:
    reply = await send(tenant.gateway.port, request_bytes({}, tenant.key, path="/v1/models"))
    assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
    assert reply.headers["x-request-id"].startswith("req_")
    assert reply.headers["allow"] == "GET"


async def test_an_unknown_path_gets_404(tenant: Tenant) -> None:
    reply = await get(tenant.gateway.port, "/v1/nothing?a=b")
    assert (reply.status, reply.error["code"]) == (404, "unknown_url")
    assert reply.headers["x-request-id"].startswith("req_")
    lookalike = request_bytes(chat(), tenant.key, path="/v1/chat/completions/")
    assert (await send(tenant.gateway.port, lookalike)).status == 404
