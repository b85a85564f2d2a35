"""Where a webhook leads to, for the tests of alerts."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SECRET: Final = b"0123456789abcdef"


class Receiver:
    """A webhook's other side: answers with ``status``, keeps what it accepted."""

    def __init__(self) -> None:
        self.status = 200
        self.refused: set[str] = set()  # alerts
        self.location = ""
        self.calls: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.calls.append(({k.lower(): v for k, v in self.headers.items()}, body))
                is_refused = self.headers["x-pandal-alert-id"] in receiver.refused
                self.send_response(422 if is_refused else receiver.status)
                self.send_header("location", receiver.location)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None: ...

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/alerts"


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join()
