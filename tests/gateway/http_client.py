"""A client that shows the bytes: for what no library would let a test send or see."""

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    @property
    def error(self) -> dict[str, Any]:
        return dict(self.document["error"])

    @property
    def payloads(self) -> list[str]:
        """The ``data`` of each server-sent event."""
        events = self.body.decode().replace("\r\n", "\n").split("\n\n")
        return [event.removeprefix("data:").strip() for event in events if event]


def chat(content: str = "hello", **members: Any) -> dict[str, Any]:
    return {"model": "model-a", "messages": [{"role": "user", "content": content}], **members}


def request_bytes(
    body: object, key: str | None, path: str = "/v1/chat/completions", **headers: str
) -> bytes:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: gateway", f"content-length: {len(payload)}"]
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Gone without a word, and surely so when it returns."""
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        status = int(first.split(" ")[1])
        if status >= 200:
            break
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines if line)}
    if headers.get("transfer-encoding") == "chunked":
        return Reply(status, headers, await read_chunks(reader))
    return Reply(status, headers, await reader.readexactly(int(headers["content-length"])))


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return body


async def send(port: int, request: bytes) -> Reply:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**26)
    try:
        writer.write(request)
        return await read_reply(reader)
    finally:
        writer.close()
        await writer.wait_closed()


async def post(port: int, body: object, key: str | None, **headers: str) -> Reply:
    return await send(port, request_bytes(body, key, **headers))


async def get(port: int, path: str, key: str | None = None, method: str = "GET") -> Reply:
    authorization = "" if key is None else f"authorization: Bearer {key}\r\n"
    return await send(port, f"{method} {path} HTTP/1.1\r\nhost: g\r\n{authorization}\r\n".encode())
