"""``POST /pandal/v1/requests/{id}/abort``: stop now, and say what was consumed."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.replica_api import AbortedUsage
from replica.api.context import context_of

ROUTE: Final = "/pandal/v1/requests/{request_id:path}/abort"  # ids may hold an encoded slash


async def abort_request(request: Request) -> Response:
    request_id = request.path_params["request_id"]
    usage = await context_of(request).engine.abort(request_id)
    return Response(
        msgspec.json.encode(
            AbortedUsage(
                request_id=request_id,
                prompt_tokens=usage.prompt_tokens,
                cached_prompt_tokens=usage.cached_prompt_tokens,
                completion_tokens=usage.completion_tokens,
            )
        ),
        media_type="application/json",
    )
