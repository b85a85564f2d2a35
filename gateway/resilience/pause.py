"""A wait for time to pass, that a flow can await."""

import asyncio

from gateway.completion import Completion


def pause(seconds: float) -> Completion[None]:
    """Done after so many seconds; whoever awaits it through an exchange may be woken before."""
    completion: Completion[None] = Completion()
    asyncio.get_running_loop().call_later(seconds, completion.resolve, None)
    return completion
