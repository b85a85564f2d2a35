"""Probes and metrics: for orchestrators and scrapers, without a key."""

from collections.abc import Awaitable, Callable, Sequence

from fastapi import APIRouter, Response

from gateway.api.schemas import ReadinessBody
from gateway.metrics import MEDIA_TYPE


def health_router(
    reasons_not_ready: Callable[[], Awaitable[Sequence[str]]],
    render_metrics: Callable[[], Awaitable[str]],
) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def health() -> dict[str, str]:
        """The process answers; whether it should get work is another question."""
        return {"status": "ok"}

    @router.get("/ready")
    async def ready(response: Response) -> ReadinessBody:
        reasons = await reasons_not_ready()
        response.status_code = 503 if reasons else 200
        return ReadinessBody(is_ready=not reasons, reasons=reasons)

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(await render_metrics(), media_type=MEDIA_TYPE)

    return router
