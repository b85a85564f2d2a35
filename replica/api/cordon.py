"""``PUT`` and ``DELETE`` of ``CORDON_PATH``: whoever routes shall look elsewhere, or here again.

What runs goes on, and what still comes is served: a router learns of it a moment late.  Unlike
draining at the end it can be undone, and ends nothing.
"""

from starlette.requests import Request
from starlette.responses import Response

from replica.api.context import context_of


async def draw(request: Request) -> Response:
    context_of(request).cordon.is_drawn = True
    return Response()


async def lift(request: Request) -> Response:
    context_of(request).cordon.is_drawn = False
    return Response()
