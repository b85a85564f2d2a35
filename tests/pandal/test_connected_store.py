"""A store that a command looks into, when something is wrong that is not the store."""

import pytest

from gateway.resp_address import RespAddress
from pandal.connected_store import connected_store


async def test_a_fault_of_our_own_is_no_store_that_does_not_answer() -> None:
    no_port = RespAddress(None, "127.0.0.1", 70_000, 0, None, None)
    with pytest.RaisesGroup(OverflowError, flatten_subgroups=True):
        async with connected_store(no_port, call_deadline_s=0.1, connect_s=0.1):
            raise AssertionError
