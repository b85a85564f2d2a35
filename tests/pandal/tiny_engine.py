"""A process that behaves as a replica does from outside: ready, metrics, streams, drain.

``python tiny_engine.py PORT``.  A request to ``/stream`` lasts until its client goes.
SIGTERM turns it unready, and it ends with its last stream.
"""

import asyncio
import signal
import sys

PAGE = """vllm:num_requests_running {running}
vllm:num_requests_waiting 0
vllm:kv_cache_usage_perc 0.1
vllm:prompt_tokens_total 0
vllm:generation_tokens_total {tokens}
vllm:request_success_total {finished}
"""


class TinyEngine:
    def __init__(self) -> None:
        self.running = 0
        self.finished = 0
        self.is_draining = False
        self.over = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            if path.startswith("/stream"):
                await self._stream(writer)
            elif path == "/metrics":
                page = PAGE.format(
                    running=self.running, tokens=100 * self.finished, finished=self.finished
                )
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + page.encode())
            else:
                status = b"503 Draining" if self.is_draining else b"200 OK"
                writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n{}")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        self.running += 1
        try:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while not writer.is_closing():
                writer.write(b"token\n")
                await writer.drain()
                await asyncio.sleep(0.05)
        finally:
            self.running -= 1
            self.finished += 1
            self._end_if_drained()

    def drain(self) -> None:
        self.is_draining = True
        self._end_if_drained()

    def _end_if_drained(self) -> None:
        if self.is_draining and self.running == 0:
            self.over.set()


async def main(port: int) -> None:
    engine = TinyEngine()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, engine.drain)
    async with await asyncio.start_server(engine.answer, "127.0.0.1", port):
        await engine.over.wait()


asyncio.run(main(int(sys.argv[1])))
