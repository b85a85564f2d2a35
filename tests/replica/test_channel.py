"""The engine's end of the socket, when the other end goes."""

import socket

import pytest

from replica.engine.channel import Channel, ChannelClosed
from replica.engine.messages import LoadFailed


def test_an_orderly_end_closes_the_channel() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(ChannelClosed):
        Channel(ours).receive(timeout_s=None)


def test_an_end_over_unread_reports_closes_it_too() -> None:
    """The kernel tells it as a reset, an OSError like that of a file that cannot be read."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    channel.send(LoadFailed(detail="nobody reads this"))
    theirs.close()
    with ours, pytest.raises(ChannelClosed):
        channel.receive(timeout_s=None)
