"""``GET /v1/models`` and ``/v1/models/{id}``: what the caller may name as ``model``."""

from fastapi import APIRouter, Request

from gateway.api.schemas import ModelBody, ModelListBody
from gateway.auth import Authenticator
from gateway.policies import Grant
from gateway.request_head import repetition
from gateway.routing.pool import ReplicaPool


def models_router(authenticator: Authenticator, pool: ReplicaPool) -> APIRouter:
    router = APIRouter()

    def grant_of(request: Request) -> Grant:
        repeated = repetition(request.headers.raw)
        if repeated is not None:
            raise repeated
        authorization = request.headers.get("authorization")
        return authenticator.recognize(
            None if authorization is None else authorization.encode("latin-1"),
            lambda: "" if request.client is None else request.client.host,
        )

    def models_of(grant: Grant) -> list[str]:
        """Those that the caller's key is for."""
        providers = grant.tenant.providers
        served = pool.served_models(providers)
        return [m for m in served if _may_use(grant, pool.resolve(m, providers=providers))]

    def body_of(model: str) -> ModelBody:
        return ModelBody(id=model, created=pool.created_unix_s(model), parent=pool.parent(model))

    @router.get("/v1/models/{model:path}")
    async def retrieve_model(request: Request, model: str) -> ModelBody:
        grant = grant_of(request)
        if model not in models_of(grant):
            raise pool.not_found(model, grant.tenant.providers)
        return body_of(model)

    @router.get("/v1/models")
    async def list_models(request: Request) -> ModelListBody:
        return ModelListBody(data=[body_of(model) for model in models_of(grant_of(request))])

    return router


def _may_use(grant: Grant, model: str) -> bool:
    scope = grant.for_model(model).scope
    return scope is None or scope.has_model(model)
