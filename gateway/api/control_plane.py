"""The FastAPI side: everything that is not inference, with errors in OpenAI's shape."""

from collections.abc import Sequence

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException

from gateway.api.context import Operation
from gateway.api.errors import error_body, error_status, retry_headers
from gateway.errors import GatewayError, MethodNotAllowed, UnknownPath

_DATA_PLANE_PATHS = frozenset(operation.path for operation in Operation)


def control_plane(routers: Sequence[APIRouter]) -> FastAPI:
    app = FastAPI(title="Pandal gateway", docs_url=None, redoc_url=None, openapi_url=None)
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(GatewayError, _on_gateway_error)
    return app


async def _on_http_exception(request: Request, exc: Exception) -> Response:
    """Only 404 and 405 come here: the routes take no bodies and no parameters."""
    assert isinstance(exc, HTTPException)
    # The data plane takes POST before ASGI begins, so what arrives here for its paths is not POST.
    is_wrong_method = exc.status_code == 405 or request.url.path in _DATA_PLANE_PATHS
    if is_wrong_method:
        allowed = (exc.headers or {}).get("Allow", "POST")
        response = _response(MethodNotAllowed(f"Use {allowed} for this path."))
        response.headers["allow"] = allowed
        return response
    return _response(UnknownPath("There is nothing at this path."))


async def _on_gateway_error(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, GatewayError)
    return _response(exc)


def _response(error: GatewayError) -> Response:
    response = Response(
        error_body(error), status_code=error_status(error), media_type="application/json"
    )
    for line in retry_headers(error).splitlines():
        name, _, value = line.decode().partition(": ")
        response.headers[name] = value
    return response
