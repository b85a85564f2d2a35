"""Reading a request body, up to a limit."""

from starlette.requests import Request

from replica.errors import BodyTooLarge


async def read_body(request: Request, max_body_bytes: int) -> bytes:
    """Raises BodyTooLarge, as early as that is known."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_body_bytes:
        raise _too_large(max_body_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_body_bytes:
            raise _too_large(max_body_bytes)
    return bytes(body)


def _too_large(max_body_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than {max_body_bytes} bytes")
