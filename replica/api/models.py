"""``GET /v1/models``: the one model a replica serves."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from replica.api.context import context_of


class _ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    max_model_len: int | None
    object: str = "model"
    owned_by: str = "pandal"


class _ModelList(msgspec.Struct, frozen=True, kw_only=True):
    data: tuple[_ModelCard, ...]
    object: str = "list"


async def list_models(request: Request) -> Response:
    """Also while loading: the name is known, the context length not yet."""
    context = context_of(request)
    ready = context.engine.ready
    card = _ModelCard(
        id=context.engine.model_name,
        created=context.started_at_unix_s,
        max_model_len=None if ready is None else ready.max_model_len,
    )
    return Response(msgspec.json.encode(_ModelList(data=(card,))), media_type="application/json")
