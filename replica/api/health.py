"""Liveness, and readiness with progress."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.replica_api import Phase
from replica.api.context import context_of
from replica.engine.engine import Engine

_JSON: Final = "application/json"


async def health(request: Request) -> Response:
    """Shallow: the process answers and its engine has not died.

    A loading replica is alive, and so is a hung one: it may come back, and ends by itself if not.
    """
    engine = context_of(request).engine
    return _state(engine, is_ok=not engine.has_failed)


async def ready(request: Request) -> Response:
    context = context_of(request)
    if context.engine.is_ready and context.cordon.is_drawn:
        closed = msgspec.structs.replace(context.engine.state, phase=Phase.DRAINING)
        return Response(msgspec.json.encode(closed), status_code=503, media_type=_JSON)
    return _state(context.engine, is_ok=context.engine.is_ready)


def _state(engine: Engine, *, is_ok: bool) -> Response:
    """contracts.replica_api.ReplicaState."""
    return Response(
        msgspec.json.encode(engine.state),
        status_code=200 if is_ok else 503,
        media_type=_JSON,
    )
