"""``GET /v1/models``: the one model a replica serves, and what is adapted of it."""

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
    parent: str | None = None  # as vLLM says whose adapter it is


class _ModelList(msgspec.Struct, frozen=True, kw_only=True):
    data: tuple[_ModelCard, ...]
    object: str = "list"


async def list_models(request: Request) -> Response:
    """Also while loading: the name is known, the context length not yet."""
    context = context_of(request)
    engine = context.engine

    def card(name: str, parent: str | None = None) -> _ModelCard:
        return _ModelCard(
            id=name,
            created=context.started_at_unix_s,
            max_model_len=None if engine.ready is None else engine.ready.max_model_len,
            parent=parent,
        )

    names = engine.names
    adapted = (card(name, names.model) for name in names.adapters)
    listed = _ModelList(data=(card(names.model), *adapted))
    return Response(msgspec.json.encode(listed), media_type="application/json")
