"""Waits of a flow: for time to pass, or for the first of several completions."""

import asyncio
from functools import partial

from gateway.completion import Completion
from gateway.exchange import Exchange


def pause(seconds: float) -> Completion[None]:
    """Done after so many seconds; whoever awaits it through an exchange may be woken before."""
    completion: Completion[None] = Completion()
    asyncio.get_running_loop().call_later(seconds, completion.resolve, None)
    return completion


async def news_of(
    exchange: Exchange, *heads: Completion[None], within_s: float | None = None
) -> None:
    """Returns when one of them is done, however that ended, or the time is over.

    Raises Interrupted.
    """
    news: Completion[None] = Completion()
    tell = partial(news.resolve, None)
    for head in heads:
        head.then(tell)
    timer = None if within_s is None else asyncio.get_running_loop().call_later(within_s, tell)
    try:
        await exchange.watch(news)
    finally:
        if timer is not None:
            timer.cancel()
