"""Reading a request body, up to a limit."""

from starlette.requests import Request

from replica.api.context import ReplicaContext
from replica.errors import BodyTooLarge


async def read_body(request: Request, context: ReplicaContext) -> bytes:
    """Raises BodyTooLarge, as early as that is known, BodyTimeout or BodyAbandoned."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > context.max_body_bytes:
        raise _too_large(context.max_body_bytes)
    body = bytearray()
    async with context.patience.reading():
        async for chunk in request.stream():
            body += chunk
            if len(body) > context.max_body_bytes:
                raise _too_large(context.max_body_bytes)
    return bytes(body)


def _too_large(max_body_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than {max_body_bytes} bytes")
