"""Request headers that name something."""

import re
from typing import Final

from starlette.requests import Request

from replica.errors import InvalidRequest

_PRINTABLE: Final = re.compile(r"[\x21-\x7e]{1,200}")


def printable(request: Request, name: str) -> str | None:
    """What can stand in a header and a log.  None: there is no such header.

    Raises InvalidRequest.
    """
    value = request.headers.get(name)
    if value is not None and _PRINTABLE.fullmatch(value) is None:
        raise InvalidRequest(f"{name} must be 1 to 200 printable ASCII characters", param=name)
    return value
