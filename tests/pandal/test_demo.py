import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import pytest

from pandal.demo import DemoAnswer, Usage, ask
from pandal.errors import DemoRefused, FleetFailed
from pandal.http_client import Address

HELLO = (
    b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n',
    b'data: {"choices": [{"delta": {"content": "Hel"}}]}\n\n',
    b'data: {"choices": [{"delta": {"content": "lo"}}]}\n\n',
    b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\n',
)
DONE = b"data: [DONE]\n\n"


@contextmanager
def gateway(status: int, *pieces: bytes) -> Iterator[Address]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("x-request-id", "r1")
            self.send_header("X-RateLimit-Remaining-Tokens", "41")
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)

        def log_message(self, *arguments: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Address("127.0.0.1", server.server_port)
        finally:
            server.shutdown()
            thread.join()


def ticking() -> Callable[[], float]:
    """A clock that moves by a second at each look."""
    seconds = count()
    return lambda: float(next(seconds))


def test_an_answer_is_shown_as_it_comes_and_timed() -> None:
    shown: list[str] = []
    with gateway(200, *HELLO, DONE) as address:
        answer = ask(address, "sk-pandal-x", show=shown.append, monotonic_s=ticking())
    assert shown == ["Hel", "lo"]
    assert answer == DemoAnswer(
        request_id="r1",
        ttft_s=1.0,
        generation_s=1.0,
        usage=Usage(prompt_tokens=7, completion_tokens=3),
        rate_limits={"x-ratelimit-remaining-tokens": "41"},
    )
    assert answer.tokens_per_s == 2.0


@pytest.mark.parametrize(
    ("status", "pieces", "complaint"),
    [
        (401, (b'{"error": {"message": "no such key"}}',), "answered 401: no such key"),
        (503, (b"<html>",), "answered 503: <html>"),
        (200, HELLO, "ended early"),
        (200, (DONE,), "ended early"),
        (200, (*HELLO[:2], b'data: {"error": {"message": "replica died"}}\n\n'), "replica died"),
        (200, (b"data: {]\n\n",), "not a chat completion"),
    ],
    ids=["refused", "not json", "no done", "no text", "error event", "garbage"],
)
def test_an_answer_that_is_not_whole_fails_the_demo(
    status: int, pieces: Sequence[bytes], complaint: str
) -> None:
    with gateway(status, *pieces) as address, pytest.raises(FleetFailed, match=complaint):
        ask(address, "sk-pandal-x", show=lambda text: None)


def test_a_refusal_is_the_policys_and_not_the_fleets() -> None:
    with (
        gateway(400, b'{"error": {"message": "too large"}}') as address,
        pytest.raises(DemoRefused, match="answered 400: too large"),
    ):
        ask(address, "sk-pandal-x", show=lambda text: None)


def test_a_server_that_counts_nothing_still_answers() -> None:
    with gateway(200, *HELLO[:3], DONE) as address:
        answer = ask(address, "sk-pandal-x", show=lambda text: None, monotonic_s=ticking())
    assert answer.usage is None
    assert answer.tokens_per_s is None
    assert answer.generation_s == 1.0


def test_one_token_is_too_few_for_a_speed() -> None:
    answer = DemoAnswer(
        request_id="r1",
        ttft_s=0.1,
        generation_s=0.0,
        usage=Usage(prompt_tokens=1, completion_tokens=1),
        rate_limits={},
    )
    assert answer.tokens_per_s is None
