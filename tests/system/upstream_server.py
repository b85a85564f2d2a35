"""A fast OpenAI-compatible server for fleets that need no model.

``upstream_server.py PORT [uncounted]``: the second word makes it one that tells no usage.

Its answers are words; one word is one token, in prompts too.  A prompt that holds "slowly" is
answered at ten words a second; one that holds "break off" is not answered to its end.
"""

import json
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "words-1"


class WordsServer(ThreadingHTTPServer):
    is_uncounted = False


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
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        if self.path != "/v1/chat/completions":
            self._answer(404, {"error": {"message": "no such path", "type": "not_found"}})
            return
        prompt = " ".join(str(message["content"]) for message in body["messages"])
        count = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        usage = {
            "prompt_tokens": len(prompt.split()),
            "completion_tokens": count,
            "total_tokens": len(prompt.split()) + count,
        }
        if body.get("stream"):
            if "break off" in prompt:
                self.close_connection = True
                self._begin_stream(words(3, pause_s=0.0))
                return
            self._stream(words(count, pause_s=0.1 if "slowly" in prompt else 0.0), usage)
        else:
            text = "".join(words(count, pause_s=0.0))
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "length"}
            self._answer(200, envelope("chat.completion", [choice], usage))

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
    words_server.serve_forever()
