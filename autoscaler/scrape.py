"""Plain HTTP to pods: everyone's metrics at once, each with its own fate."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from autoscaler.cluster import Address
from autoscaler.errors import SourceFailed, SourceRefused, SourceTooLarge
from autoscaler.exposition import parse
from autoscaler.pages import Reading

T = TypeVar("T")

MAX_PAGE_BYTES: Final = 4 * 1024 * 1024  # vLLM's page is 50 kB
MAX_AT_ONCE: Final = 64
# 1.0: the answer ends with the connection, whoever sends it.  0.0.4: names keep their spelling.
_REQUEST: Final = (
    "{method} {path} HTTP/1.0\r\nHost: {host}:{port}\r\n"
    "Accept: text/plain;version=0.0.4\r\nConnection: close\r\n{rest}"
)
_NO_BODY: Final = "Content-Length: 0\r\n\r\n"
_FORM: Final = (
    "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{form}"
)


@dataclass(frozen=True, slots=True)
class PodPages:
    timeout_s: float

    async def read(
        self, addresses: Mapping[str, Address], reading: Reading[T]
    ) -> Mapping[str, T | None]:
        limit = asyncio.Semaphore(MAX_AT_ONCE)

        async def one(address: Address) -> T | None:
            async with limit:
                try:
                    page = await get(address, "/metrics", timeout_s=self.timeout_s)
                    return reading.sample(parse(page), None)
                except SourceFailed:
                    return None

        samples = await asyncio.gather(*(one(address) for address in addresses.values()))
        return dict(zip(addresses, samples, strict=True))


async def get(address: Address, path: str, *, timeout_s: float) -> str:
    """The body of a 200.  Raises SourceRefused for another answer, SourceFailed for none."""
    return await exchange(address, "GET", path, timeout_s=timeout_s)


async def exchange(
    address: Address, method: str, path: str, *, timeout_s: float, form: str | None = None
) -> str:
    """The same for any method, and with the fields of a form, encoded."""
    rest = _NO_BODY if form is None else _FORM.format(length=len(form), form=form)
    request = _REQUEST.format(
        method=method, path=path, host=address.host, port=address.port, rest=rest
    )
    named = path.partition("?")[0]
    try:
        async with asyncio.timeout(timeout_s):
            page = await _answered(address, request.encode())
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as exc:
        raise SourceFailed(f"{named}: {type(exc).__name__}") from exc
    except SourceTooLarge as exc:
        raise SourceTooLarge(f"{named}: {exc}") from exc
    head, separator, body = page.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split()
    if not separator or len(status) < 2:
        raise SourceFailed(f"{named}: no answer in HTTP")
    if status[1] != b"200":
        told = status[1].decode("ascii", errors="replace")
        raise SourceRefused(f"{named}: not answered with 200", told)
    return body.decode("utf-8", errors="replace")


async def _answered(address: Address, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(request)
        await writer.drain()
        page = bytearray()
        while chunk := await reader.read(65_536):
            page += chunk
            if len(page) > MAX_PAGE_BYTES:
                raise SourceTooLarge(f"more than {MAX_PAGE_BYTES} bytes")
        return bytes(page)
    finally:
        writer.close()
