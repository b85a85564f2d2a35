import socket

import pytest

from pandal.errors import PreflightFailed
from pandal.surroundings import free_ports


def test_ports_of_replicas_differ_and_skip_those_in_use(free_port: int) -> None:
    first, second, third = free_ports(3, after=free_port)
    assert free_port < first < second < third
    with socket.create_server(("127.0.0.1", second)):
        assert second not in free_ports(3, after=free_port)


def test_no_port_behind_the_last_is_said() -> None:
    with pytest.raises(PreflightFailed, match="lower --port"):
        free_ports(1, after=65_535)
