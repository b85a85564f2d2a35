"""The address that is loaded, and the head of every request to it."""

import urllib.parse
from dataclasses import dataclass

from pandal.errors import BadOption


@dataclass(frozen=True, slots=True)
class Target:
    """Where chat completions are posted."""

    host: str
    port: int
    path: str
    is_tls: bool = False

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.path}"


def parse_target(url: str) -> Target:
    """``http(s)://HOST[:PORT][/v1]``.  Raises BadOption, also for what might carry a secret."""
    expected = "--url: expected http://HOST:PORT or an OpenAI base URL, without user, query or '#'"
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise BadOption(expected) from exc
    is_plain = parts.username is None and not parts.query and not parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise BadOption(expected)
    is_tls = parts.scheme == "https"
    default_port = 443 if is_tls else 80
    return Target(parts.hostname, default_port if port is None else port, _path(parts.path), is_tls)


def request_head(target: Target, api_key: str | None) -> bytes:
    """All of the head but the length and the empty line."""
    lines = [
        f"POST {target.path} HTTP/1.1",
        f"host: {target.url.split('/')[2]}",
        "content-type: application/json",
        "accept: text/event-stream",
        "user-agent: pandal-bench",
    ]
    if api_key is not None:
        lines.append(f"authorization: Bearer {api_key}")
    return ("\r\n".join(lines) + "\r\ncontent-length: ").encode()


def _path(path: str) -> str:
    path = path.rstrip("/")
    if path.endswith("/chat/completions"):
        return path
    return f"{path}/chat/completions" if path else "/v1/chat/completions"
