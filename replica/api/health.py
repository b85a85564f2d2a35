"""Liveness, and readiness with progress."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from replica.api.context import context_of


async def health(request: Request) -> Response:
    """Shallow: the process answers and its engine has not died.  A loading replica is alive."""
    return Response(status_code=503 if context_of(request).engine.has_failed else 200)


async def ready(request: Request) -> Response:
    """contracts.replica_api.ReplicaState."""
    engine = context_of(request).engine
    return Response(
        msgspec.json.encode(engine.state),
        status_code=200 if engine.is_ready else 503,
        media_type="application/json",
    )
