"""One port for several processes: the kernel deals out the connections (SO_REUSEPORT).

Each listens with a queue of its own, so that none can take all the connections of a burst.
"""

import socket


def bound(host: str, port: int, *, is_shared: bool = True) -> socket.socket:
    """Not listening yet, so it gets no connection.  Raises OSError, unless all share the port."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(is_shared))
        found.bind(address)
    except OSError:
        found.close()
        raise
    return found
