"""uvicorn with the data plane in its protocol, and a shutdown that settles every request."""

import asyncio
import contextlib
import functools
import logging
import signal
import socket
from collections.abc import Generator
from dataclasses import dataclass

import uvicorn

from gateway.app import Gateway
from gateway.client_connection import ConnectionLimits
from gateway.protocol import DataPlaneProtocol

logger = logging.getLogger(__name__)

_READY_LOOK_S = 0.02
_SETTLE_S = 5.0  # from the interruption of the last requests to their settled end


@dataclass(frozen=True, slots=True)
class Listener:
    host: str
    port: int  # 0: any free one
    keep_alive_timeout_s: int
    drain_timeout_s: float
    ready_patience_s: float  # so long it does not listen before it is ready


class GatewayServer(uvicorn.Server):
    def __init__(self, gateway: Gateway, listener: Listener, limits: ConnectionLimits) -> None:
        protocol = functools.partial(
            DataPlaneProtocol,
            start=gateway.start,
            make_request_id=gateway.make_request_id,
            limits=limits,
        )
        super().__init__(
            uvicorn.Config(
                gateway.control_plane,
                host=listener.host,
                port=listener.port,
                http=protocol,  # type: ignore[arg-type]  # called like the class it wraps
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",  # we tell of our start and stop ourselves
                access_log=False,
                server_header=False,
                date_header=False,
                backlog=4096,
                timeout_keep_alive=listener.keep_alive_timeout_s,
                timeout_graceful_shutdown=int(listener.drain_timeout_s + _SETTLE_S) + 1,
            )
        )
        self._gateway = gateway
        self._drain_timeout_s = listener.drain_timeout_s
        self._ready_patience_s = listener.ready_patience_s

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Through the event loop, and without raising the signal again: a stop is a success."""
        loop = asyncio.get_running_loop()
        handled = (signal.SIGINT, signal.SIGTERM)
        for number in handled:
            loop.add_signal_handler(number, self._stop, number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self._ready_or_out_of_patience()
        self._gateway.readiness.is_listening = True
        await super().startup(sockets)
        for server in self.servers:
            for listener in server.sockets:
                logger.info("listening", extra={"port": listener.getsockname()[1]})

    async def _ready_or_out_of_patience(self) -> None:
        """Then it listens all the same, so that probes are told why it is not."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._ready_patience_s
        while not self.should_exit and loop.time() < end_s:
            if not self._gateway.readiness.reasons_not_ready():
                return
            await asyncio.sleep(_READY_LOOK_S)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        now_s = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            if isinstance(connection, DataPlaneProtocol):
                if connection.flow.read_paused:
                    connection.check_unread()
                if counter % 10 == 0:
                    connection.check_deadlines(now_s)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Running requests may finish until the drain is over, then they are interrupted."""
        loop = asyncio.get_running_loop()
        pipeline = self._gateway.pipeline
        end_s = loop.time() + self._drain_timeout_s + _SETTLE_S
        timer = loop.call_later(self._drain_timeout_s, pipeline.interrupt_all)
        try:
            await super().shutdown(sockets)
            with contextlib.suppress(TimeoutError):  # the pipeline's own stop ends what is left
                async with asyncio.timeout_at(end_s):
                    await pipeline.until_idle()  # not all answers have a connection
        finally:
            timer.cancel()

    def _stop(self, number: signal.Signals) -> None:
        logger.info("stopping", extra={"signal": number.name})
        self.stop()

    def stop(self) -> None:
        self._gateway.readiness.is_draining = True
        self.should_exit = True
