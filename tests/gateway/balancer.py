"""Clients before several gateways, and what those gateways have noticed meanwhile."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.gateway.http_client import Reply, chat, read_reply, request_bytes
from tests.gateway.processes import Gateway


@dataclass
class Balancer:
    """Sends to either gateway, as a load balancer does: to one that accepts connections.

    A keep-alive connection that a gateway closes while idle is no failure of a request.
    """

    gateways: list[Gateway]
    key: str
    members: Mapping[str, object] = field(default_factory=dict)  # of each request's body
    replies: list[Reply] = field(default_factory=list)
    is_over: bool = False

    async def keep_asking(self, number: int) -> None:
        turn = number
        while not self.is_over:
            turn += 1
            body = chat(f"{number} {turn}", stream=turn % 2 == 0, **self.members)
            reply = await self._ask(self.gateways[turn % 2], body)
            if reply is not None:
                self.replies.append(reply)

    async def _ask(self, gateway: Gateway, body: object) -> Reply | None:
        """``None``: it does not accept connections."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        except OSError:
            await asyncio.sleep(0.01)
            return None
        try:
            writer.write(request_bytes(body, self.key))
            return await read_all(reader)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def read_all(reader: asyncio.StreamReader) -> Reply | None:
    """``None``: the connection was closed before it was accepted, with the request unread."""
    try:
        return await read_reply(reader)
    except (ConnectionResetError, asyncio.IncompleteReadError) as failure:
        if isinstance(failure, asyncio.IncompleteReadError) and failure.partial:
            raise
        return None


class Noticed:
    """What gateways have logged since."""

    def __init__(self, gateways: list[Gateway]) -> None:
        self._lines = {gateway: len(gateway.log_lines()) for gateway in gateways}

    def by_all(self, message: str) -> bool:
        return all(
            any(line["message"] == message for line in gateway.log_lines()[number:])
            for gateway, number in self._lines.items()
        )


def num_of(gateway: Gateway, message: str) -> int:
    return sum(line["message"] == message for line in gateway.log_lines())
