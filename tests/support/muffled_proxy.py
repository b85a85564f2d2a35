"""A TCP proxy on 127.0.0.1 that can fall silent without closing anything, as a lost route does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class MuffledProxy:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._connections: set[int] = set()
        self._muffled: set[int] = set()
        self._served: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.num_connections = 0

    def muffle(self) -> None:
        """Of what is connected now nothing comes through any more; what connects later works."""
        self._muffled |= self._connections

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        self._served.add(asyncio.create_task(self._serve(reader, writer)))

    async def _stop(self) -> None:
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)
        for end in self._ends:
            end.transport.abort()
        await asyncio.sleep(0)  # only then are their sockets closed

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        number = self.num_connections
        self._connections.add(number)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        self._ends.add(back)
        pumps = [
            asyncio.create_task(self._pump(number, reader, back)),
            asyncio.create_task(self._pump(number, there, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            writer.close()
            back.close()

    async def _pump(
        self, number: int, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while chunk := await source.read(65_536):
                if number not in self._muffled:
                    sink.write(chunk)
                    await sink.drain()


@asynccontextmanager
async def muffled_proxy(target_port: int) -> AsyncIterator[MuffledProxy]:
    proxy = MuffledProxy(target_port)
    server = await asyncio.start_server(proxy._accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy._stop()
