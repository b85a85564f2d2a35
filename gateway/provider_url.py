"""The address of another owner's server, as its documentation and its SDKs spell it."""

from typing import Final
from urllib.parse import urlsplit

_PORTS: Final = {"http": 80, "https": 443}
_VERSION: Final = "/v1"  # an SDK's base has it; the paths that are put behind ours begin with it


def provider_url(text: str) -> str:
    """With its port, up to the API's own path.  Raises ValueError, in words that repeat none."""
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError as exc:
        raise ValueError("expected a URL with a port from 1 to 65535, or none") from exc
    if url.scheme not in _PORTS:
        raise ValueError("expected a URL that begins with https:// or http://")
    if not host or ":" in host or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("expected a host's name or IPv4 address behind https://")
    if "@" in url.netloc:
        raise ValueError("a URL holds no credentials: expected them in api_key or api_key_file")
    if "?" in text or "#" in text:
        raise ValueError("expected a URL without ? and #: only what is before the API's own path")
    if port == 0:
        raise ValueError("expected a URL with a port from 1 to 65535, or none")
    path = url.path.rstrip("/").removesuffix(_VERSION).rstrip("/")
    port = _PORTS[url.scheme] if port is None else port
    return f"{url.scheme}://{host}:{port}{path}"
