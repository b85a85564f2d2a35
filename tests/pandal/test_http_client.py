import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from pandal.errors import BadOption, Unreachable
from pandal.http_client import Address, get, parse_url


@contextmanager
def answering(*pieces: bytes) -> Iterator[Address]:
    """A server that reads one request head and sends ``pieces``, whatever they are."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):  # nobody asks, or whoever did has heard enough
                connection, _ = server.accept()
                with connection:
                    read_head(connection)
                    for piece in pieces:
                        connection.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Address("127.0.0.1", server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)  # wakes an accept
            thread.join()


def read_head(connection: socket.socket) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        part = connection.recv(65_536)
        if not part:
            raise ConnectionError("gone in the middle of its head")
        head += part


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000", Address("127.0.0.1", 8000)),
        ("http://localhost:8000/", Address("localhost", 8000)),
        ("http://replica", Address("replica", 80)),
    ],
)
def test_a_replicas_url_is_host_and_port(url: str, address: Address) -> None:
    assert parse_url(url, option="--dev-replica") == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "https://127.0.0.1:8000",
        "http://",
        "http://x:0",
        "http://x:abc",
        "http://x:70000",
        "http://x:1/v1",
        "http://x:1?a=b",
        "http://[::1]:8000",
        "http://[::1",
    ],
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(BadOption, match="expected http://HOST:PORT"):
        parse_url(url, option="--dev-replica")


def test_headers_are_found_in_lower_case() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nX-Request-Id: r1\r\nContent-Length: 2\r\n\r\n{}") as there:
        answer = get(there, "/", timeout_s=30)
    assert (answer.status, answer.headers["x-request-id"], answer.body) == (200, "r1", b"{}")


@pytest.mark.parametrize(
    "piece",
    [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"],
    ids=["nothing", "another protocol", "cut off"],
)
def test_a_broken_answer_is_unreachable(piece: bytes) -> None:
    with answering(piece) as there, pytest.raises(Unreachable, match=there.url):
        get(there, "/", timeout_s=30)


def test_an_answer_that_goes_on_is_cut_off() -> None:
    """One without an end as one without a length."""
    endless = answering(b"HTTP/1.1 200 OK\r\n\r\n", b"a" * 1_048_577)
    with endless as there, pytest.raises(Unreachable, match="too long"):
        get(there, "/", timeout_s=30)


@pytest.mark.parametrize("begun", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: "])
def test_an_answer_that_drips_has_a_deadline(begun: bytes) -> None:
    """Each byte comes in time."""
    has_left = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            with suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(begun)
                    while not has_left.wait(0.05):
                        connection.sendall(b"a")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(Unreachable, match="timed out"):
                get(Address("127.0.0.1", server.getsockname()[1]), "/", timeout_s=0.5)
        finally:
            has_left.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
