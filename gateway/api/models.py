"""``GET /v1/models``: what the caller may name as ``model``."""

from collections.abc import Sequence

from fastapi import APIRouter, Request
from pydantic import BaseModel

from gateway.auth import Authenticator
from gateway.routing.pool import ReplicaPool


class Model(BaseModel):
    id: str
    object: str = "model"
    created: int = 0  # replicas do not tell
    owned_by: str = "pandal"


class ModelList(BaseModel):
    object: str = "list"
    data: Sequence[Model]


def models_router(authenticator: Authenticator, pool: ReplicaPool) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models")
    async def list_models(request: Request) -> ModelList:
        authorization = request.headers.get("authorization")
        authenticator.authenticate(
            None if authorization is None else authorization.encode("latin-1")
        )
        return ModelList(data=[Model(id=model) for model in pool.served_models()])

    return router
