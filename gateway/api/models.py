"""``GET /v1/models``: what the caller may name as ``model``."""

from fastapi import APIRouter, Request

from gateway.api.schemas import ModelBody, ModelListBody
from gateway.auth import Authenticator
from gateway.routing.pool import ReplicaPool


def models_router(authenticator: Authenticator, pool: ReplicaPool) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models")
    async def list_models(request: Request) -> ModelListBody:
        authorization = request.headers.get("authorization")
        authenticator.authenticate(
            None if authorization is None else authorization.encode("latin-1")
        )
        return ModelListBody(data=[ModelBody(id=model) for model in pool.served_models()])

    return router
