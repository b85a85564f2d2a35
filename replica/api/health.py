"""Liveness, and readiness with progress."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from replica.api.context import context_of
from replica.engine.engine import Engine


async def health(request: Request) -> Response:
    """Shallow: the process answers and its engine neither died nor hangs.

    A loading replica is alive.
    """
    engine = context_of(request).engine
    return _state(engine, is_ok=not (engine.has_failed or engine.is_hung))


async def ready(request: Request) -> Response:
    engine = context_of(request).engine
    return _state(engine, is_ok=engine.is_ready)


def _state(engine: Engine, *, is_ok: bool) -> Response:
    """contracts.replica_api.ReplicaState."""
    return Response(
        msgspec.json.encode(engine.state),
        status_code=200 if is_ok else 503,
        media_type="application/json",
    )
