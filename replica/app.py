"""The HTTP application over an engine."""

import logging
import secrets
import time
from datetime import UTC, datetime

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from contracts.blocks import BLOCKS_PATH
from contracts.load import LOAD_PATH
from contracts.replica_api import CORDON_PATH
from contracts.tokenizer import TOKENIZER_PATH
from replica.api import (
    abort,
    blocks,
    chat,
    completions,
    cordon,
    health,
    load,
    metrics,
    models,
    tokens,
)
from replica.api.context import Cordon, ReplicaContext
from replica.api.errors import error_response
from replica.api.patience import Patience, PatientApp
from replica.api.witness import Witness
from replica.engine.engine import Engine
from replica.errors import ReplicaError
from replica.usage_journal import UsageJournal

logger = logging.getLogger(__name__)


def create_app(
    engine: Engine,
    patience: Patience,
    journal: UsageJournal | None,
    *,
    max_body_bytes: int,
    max_choices: int,
) -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.context = ReplicaContext(
        engine=engine,
        cordon=Cordon(),
        patience=patience,
        witness=Witness(journal, engine.names, lambda: datetime.now(UTC)),
        max_body_bytes=max_body_bytes,
        max_choices=max_choices,
        new_id=lambda: secrets.token_hex(16),
        new_seed=lambda: secrets.randbits(63),
        unix_time_s=lambda: int(time.time()),
        started_at_unix_s=int(time.time()),
    )
    app.add_route("/v1/chat/completions", chat.create_chat_completion, methods=["POST"])
    app.add_route("/v1/completions", completions.create_completion, methods=["POST"])
    app.add_route("/v1/models", models.list_models, methods=["GET"])
    app.add_route("/tokenize", tokens.tokenize, methods=["POST"])
    app.add_route(TOKENIZER_PATH, tokens.tokenizer_file, methods=["GET"])
    app.add_route("/detokenize", tokens.detokenize, methods=["POST"])
    app.add_route(abort.ROUTE, abort.abort_request, methods=["POST"])
    app.add_route("/health", health.health, methods=["GET"])
    app.add_route("/ready", health.ready, methods=["GET"])
    app.add_route(CORDON_PATH, cordon.draw, methods=["PUT"])
    app.add_route(CORDON_PATH, cordon.lift, methods=["DELETE"])
    app.add_route(LOAD_PATH, load.load, methods=["GET"])
    app.add_route(BLOCKS_PATH, blocks.block_changes, methods=["GET"])
    app.add_route("/reset_prefix_cache", blocks.reset_prefix_cache, methods=["POST"])
    app.add_route("/metrics", metrics.metrics, methods=["GET"])
    app.add_middleware(PatientApp, patience=patience)
    app.add_exception_handler(ReplicaError, _replica_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    return app


def _replica_error(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, ReplicaError)
    return error_response(exc)


def _http_error(request: Request, exc: Exception) -> Response:
    """No such route, or not by that method."""
    assert isinstance(exc, HTTPException)
    error = ReplicaError(f"{exc.detail}: {request.method} {request.url.path}")
    return error_response(error, status=exc.status_code, type_="invalid_request_error")


def _unexpected(_: Request, exc: Exception) -> Response:
    """Starlette raises it again afterwards, and uvicorn logs it with its traceback."""
    return error_response(ReplicaError("internal error"))
