"""As much of a model server as a check before the start asks for."""

import http.server


class ModelList(http.server.BaseHTTPRequestHandler):
    """Answers /v1/models with what the server was made for."""

    body = b'{"object": "list", "data": [{"id": "tiny", "object": "model"}]}'

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *arguments: object) -> None:
        """Silent."""


class EmptyModelList(ModelList):
    body = b'{"object": "list", "data": []}'
