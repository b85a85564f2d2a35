"""The admin API's composition root."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response
from starlette.types import ASGIApp

from gateway.admin.access_log import AccessLog, AdminMetrics
from gateway.admin.authority import Authority
from gateway.admin.callers import ROLES, Role
from gateway.admin.calling import Calling
from gateway.admin.desk import PolicyDesk
from gateway.admin.key_routes import key_router, keys_used_router
from gateway.admin.oidc import OidcTokens, Provider
from gateway.admin.policy_routes import policy_router
from gateway.admin.responses import answer_errors, documented
from gateway.admin.schemas import CallerBody
from gateway.admin.settings import Settings
from gateway.clock import SYSTEM_CLOCK, Clock, IdMaker, random_digits
from gateway.metrics import MEDIA_TYPE
from gateway.policy_documents.file import FileDocuments
from gateway.policy_documents.valkey import ValkeyDocuments
from gateway.resp_address import RespAddress, StoreTls


@asynccontextmanager
async def create_admin(settings: Settings, clock: Clock = SYSTEM_CLOCK) -> AsyncGenerator[ASGIApp]:
    """Its store is connected for as long as it runs."""
    documents = _documents(settings)
    desk = PolicyDesk(documents, clock.now)
    oidc = _oidc(settings, clock)
    authority = Authority(_static(settings), oidc, clock.monotonic_s)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(documents.run())
        try:
            app = _app(settings, desk, authority, documents)
            ids, metrics = IdMaker(clock, random_digits), AdminMetrics()
            _tell_metrics(app, metrics)
            yield AccessLog(app, metrics, ids.request_id, clock)
        finally:
            running.cancel()
            if oidc is not None:
                oidc.close()


def _app(
    settings: Settings,
    desk: PolicyDesk,
    authority: Authority,
    documents: FileDocuments | ValkeyDocuments,
) -> FastAPI:
    app = FastAPI(title="Pandal admin", version="1", docs_url=None, redoc_url=None)
    app.state.authority = authority
    pepper = settings.key_pepper.get_secret_value().encode()
    app.include_router(policy_router(desk))
    app.include_router(key_router(desk, documents, pepper, os.urandom))
    app.include_router(keys_used_router(documents))

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/admin/v1/whoami", responses=documented())
    async def whoami(calling: Calling) -> CallerBody:
        return CallerBody(name=calling.name, role=calling.role.name.lower())

    answer_errors(app)
    return app


def _tell_metrics(app: FastAPI, metrics: AdminMetrics) -> None:
    @app.get("/metrics", include_in_schema=False)
    async def tell_metrics() -> Response:
        return Response(metrics.render(), media_type=MEDIA_TYPE)


def _documents(settings: Settings) -> FileDocuments | ValkeyDocuments:
    if settings.policy_url is not None:
        url = settings.policy_url.get_secret_value()
        return ValkeyDocuments(RespAddress.parse(url, StoreTls.of(settings)))
    assert settings.policy_file is not None, "settings want one of the two"
    return FileDocuments(settings.policy_file)


def _static(settings: Settings) -> tuple[tuple[str, str, Role], ...]:
    return tuple(
        (token.name, token.token.get_secret_value(), ROLES[token.role])
        for token in settings.static_tokens
    )


def _oidc(settings: Settings, clock: Clock) -> OidcTokens | None:
    if settings.oidc_issuer is None:
        return None
    provider = Provider(
        issuer=settings.oidc_issuer,
        audience=settings.oidc_audience,
        jwks_url=settings.oidc_jwks_url,
        roles_claim=settings.oidc_roles_claim,
        role_prefix=settings.oidc_role_prefix,
    )
    return OidcTokens(provider, clock.monotonic_s)
