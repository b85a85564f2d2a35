"""A fast OpenAI-compatible server for fleets that need no model.

``upstream_server.py PORT [uncounted | journal FOLDER]``: one that tells no usage, or one that keeps
its own count there and tells what an aborted request took, as our replicas do.

Its answers are words; one word is one token, in prompts too.  A prompt that holds "slowly" is
answered at ten words a second; one that holds "break off" is not answered to its end.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from contracts.names import HEADER_EVENT_ID, HEADER_LOCALLY_ADMITTED, HEADER_TENANT_ID
from tests.system.counted_answers import Answer, CountedAnswers

MODEL = "words-1"


class WordsServer(ThreadingHTTPServer):
    is_uncounted = False
    counts: CountedAnswers | None = None
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked has gone: in a fault run many do."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class WordsHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WordsServer

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        elif self.path == "/health":
            self._answer(200, {})
        else:
            self._answer(404, {"error": {"message": "no such path", "type": "not_found"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"] or 0)) or b"{}")
        if self.path == "/v1/chat/completions":
            self._chat(body)
            return
        aborted = None
        if self.server.counts is not None and self.path.endswith("/abort"):
            aborted = self.server.counts.abort(self.path.split("/")[-2])
        if aborted is None:
            self._answer(404, {"error": {"message": "no such path", "type": "not_found"}})
        else:
            self._answer(200, msgspec.to_builtins(aborted))

    def _chat(self, body: dict[str, Any]) -> None:
        prompt = " ".join(str(message["content"]) for message in body["messages"])
        count = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        num_prompt_tokens = len(prompt.split())
        usage = {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": count,
            "total_tokens": num_prompt_tokens + count,
        }
        breaks_off = "break off" in prompt
        pieces = words(3 if breaks_off else count, pause_s=0.1 if "slowly" in prompt else 0.0)
        with self._counted(num_prompt_tokens, pieces, is_stream=bool(body.get("stream"))) as made:
            if not body.get("stream"):
                message = {"role": "assistant", "content": "".join(made)}
                choice = {"index": 0, "message": message, "finish_reason": "length"}
                self._answer(200, envelope("chat.completion", [choice], usage))
            elif breaks_off:
                self.close_connection = True
                self._begin_stream(made)
            else:
                self._stream(made, usage)

    @contextmanager
    def _counted(
        self, num_prompt_tokens: int, pieces: Iterator[str], *, is_stream: bool
    ) -> Iterator[Iterator[str]]:
        counts = self.server.counts
        if counts is None:
            yield pieces
            return
        answer = Answer(
            self.headers["x-request-id"],
            self.headers[HEADER_EVENT_ID],
            self.headers[HEADER_TENANT_ID],
            HEADER_LOCALLY_ADMITTED in self.headers,
            num_prompt_tokens,
            datetime.now(UTC),
        )
        counts.begin(answer)
        try:
            yield counts.counted(answer, pieces)
        except OSError:
            self.close_connection = True  # whoever asked is gone
        finally:
            counts.end(answer, endpoint="chat.completions", is_stream=is_stream)

    def log_message(self, *arguments: object) -> None:
        """Silent."""

    def _answer(self, status: int, body: object) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def _begin_stream(self, pieces: Iterator[str]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            choice = {"index": 0, "delta": {"content": piece}, "finish_reason": None}
            self._event(json.dumps(envelope("chat.completion.chunk", [choice], None)))

    def _stream(self, pieces: Iterator[str], usage: dict[str, int]) -> None:
        self._begin_stream(pieces)
        final = {"index": 0, "delta": {}, "finish_reason": "length"}
        self._event(json.dumps(envelope("chat.completion.chunk", [final], None)))
        if not self.server.is_uncounted:
            self._event(json.dumps(envelope("chat.completion.chunk", [], usage)))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, data: str) -> None:
        payload = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(payload), payload))


def envelope(kind: str, choices: list[object], usage: dict[str, int] | None) -> dict[str, object]:
    return {
        "id": "words",
        "object": kind,
        "created": 0,
        "model": MODEL,
        "choices": choices,
        "usage": usage,
    }


def words(count: int, *, pause_s: float) -> Iterator[str]:
    for number in range(count):
        time.sleep(pause_s)
        yield f"word{number} "


if __name__ == "__main__":
    words_server = WordsServer(("127.0.0.1", int(sys.argv[1])), WordsHandler)
    words_server.is_uncounted = "uncounted" in sys.argv
    if "journal" in sys.argv:
        words_server.counts = CountedAnswers(Path(sys.argv[-1]), MODEL)
    words_server.serve_forever()
