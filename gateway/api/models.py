"""``GET /v1/models`` and ``/v1/models/{id}``: what the caller may name as ``model``."""

from fastapi import APIRouter, Request

from gateway.api.schemas import ModelBody, ModelListBody
from gateway.auth import Authenticator
from gateway.routing.pool import ReplicaPool


def models_router(authenticator: Authenticator, pool: ReplicaPool) -> APIRouter:
    router = APIRouter()

    def check_key(request: Request) -> None:
        authorization = request.headers.get("authorization")
        authenticator.authenticate(
            None if authorization is None else authorization.encode("latin-1")
        )

    def body_of(model: str) -> ModelBody:
        return ModelBody(id=model, created=pool.created_unix_s(model))

    @router.get("/v1/models/{model:path}")
    async def retrieve_model(request: Request, model: str) -> ModelBody:
        check_key(request)
        if model not in pool.served_models():
            raise pool.not_found(model)
        return body_of(model)

    @router.get("/v1/models")
    async def list_models(request: Request) -> ModelListBody:
        check_key(request)
        return ModelListBody(data=[body_of(model) for model in pool.served_models()])

    return router
