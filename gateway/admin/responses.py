"""What the admin API answers, as its OpenAPI document tells it."""

from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from contracts.faults import plain_words
from gateway.admin.schemas import ErrorBody
from gateway.api.errors import error_body, error_headers, error_status
from gateway.errors import GatewayError, InvalidRequest, MethodNotAllowed, UnknownPath

_ALWAYS: Final = (401, 403, 422, 429, 503)


class Unprocessable(InvalidRequest):
    status = 422


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:  # as FastAPI wants it
    return {status: {"model": ErrorBody} for status in (*_ALWAYS, *statuses)}


def answer_errors(app: FastAPI) -> None:
    """In the shape that the data plane has, too."""

    async def refuse(request: Request, exc: Exception) -> Response:
        if isinstance(exc, RequestValidationError):
            exc = _unprocessable(exc)
        if isinstance(exc, HTTPException):
            headers = exc.headers
            exc = _of_http(exc)
            return _response(exc, dict(headers or {}))
        assert isinstance(exc, GatewayError)
        return _response(exc, {})

    for kind in (HTTPException, GatewayError, RequestValidationError):
        app.add_exception_handler(kind, refuse)


def _unprocessable(exc: RequestValidationError) -> Unprocessable:
    """Names where, and not what was sent: it may be a secret."""
    first = exc.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    return Unprocessable(f"{path}: {plain_words(first)}.", param=path)


def _of_http(exc: HTTPException) -> GatewayError:
    if exc.status_code == 405:
        return MethodNotAllowed("Use another method for this path.")
    if exc.status_code == 404:
        return UnknownPath("There is nothing at this path.")
    return Unprocessable("The body must be one JSON object.")


def _response(error: GatewayError, headers: dict[str, str]) -> Response:
    response = Response(
        error_body(error),
        status_code=error_status(error),
        media_type="application/json",
        headers=headers,
    )
    for line in error_headers(error).splitlines():
        name, _, value = line.decode().partition(": ")
        response.headers[name] = value
    return response
