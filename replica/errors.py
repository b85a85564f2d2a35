"""Every way a replica can refuse or fail, with what the HTTP boundary needs to say so.

ReplicaError
├── InvalidRequest            400
│   ├── ContextLengthExceeded 400
│   └── NotSupported          400: another server may serve it
├── UnknownModel              404
├── UnknownRequest            404
├── BodyTimeout               408
├── BodyTooLarge              413
├── NotReady                  503, Retry-After: the engine has not seen the request
│   └── BodyAbandoned         503, Retry-After
├── Overloaded                503, Retry-After
├── RequestAborted            499
├── EngineDied                500: the engine may have begun, and nobody else should
├── EngineSilent              504
├── GenerationFailed          500
└── ModelError                never reaches HTTP as such: the load fails and /ready says why
    ├── ModelNotFound
    ├── ModelDownloadFailed
    ├── ModelInvalid          the files are damaged or contradict themselves
    └── ModelUnsupported      the files are fine; this engine does not run them
"""

from typing import ClassVar

from contracts.replica_api import CODE_NOT_SUPPORTED


class ReplicaError(Exception):
    """The message is shown to clients:

    it holds no part of a prompt beyond what they named wrong.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    retry_after_s: ClassVar[int | None] = None
    closes_connection: ClassVar[bool] = False  # what else comes on it belongs to no request

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(ReplicaError):
    status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class NotSupported(InvalidRequest):
    code = CODE_NOT_SUPPORTED


class UnknownModel(ReplicaError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class UnknownRequest(ReplicaError):
    status = 404
    type = "invalid_request_error"
    code = "request_not_found"


class BodyTimeout(ReplicaError):
    status = 408
    type = "invalid_request_error"
    code = "body_timeout"
    closes_connection = True


class BodyTooLarge(ReplicaError):
    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class NotReady(ReplicaError):
    """Starting, draining or failed: another replica, or this one later, can take the request."""

    status = 503
    type = "service_unavailable"
    code = "not_ready"
    retry_after_s = 1


class BodyAbandoned(NotReady):
    """The replica goes down, for whatever reason, before the body is here."""

    closes_connection = True


class Overloaded(ReplicaError):
    status = 503
    type = "service_unavailable"
    code = "overloaded"
    retry_after_s = 1


class RequestAborted(ReplicaError):
    """Only whoever aborted it could still read the answer."""

    status = 499  # nginx's "client closed request"
    type = "invalid_request_error"
    code = "request_aborted"


class EngineDied(ReplicaError):
    """No 503, which a gateway takes elsewhere: what kills one engine may kill the next."""

    code = "engine_died"


class EngineSilent(ReplicaError):
    """It has not answered in time, and may yet."""

    status = 504
    code = "engine_silent"


class GenerationFailed(ReplicaError):
    code = "generation_failed"


class ModelError(ReplicaError):
    """One line for the operator."""


class ModelNotFound(ModelError):
    pass


class ModelDownloadFailed(ModelError):
    pass


class ModelInvalid(ModelError):
    pass


class ModelUnsupported(ModelError):
    pass
