"""What can go wrong with a request, and what the client is told about it.

Every class knows its status and OpenAI's ``type`` and ``code``.  Messages hold neither a key nor
any part of a prompt or an answer.
"""

from typing import ClassVar

from contracts.usage import Outcome


def whole_seconds(duration_ms: int) -> int:
    """Rounded up: what is waited for is then over."""
    return -(-duration_ms // 1000)


class GatewayError(Exception):
    """Base of the tree.  ``str(error)`` is the message the client reads."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str | None = "internal_error"
    param: str | None = None
    retry_after_ms: int | None = None  # None: waiting is not known to help


class InvalidApiKey(GatewayError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class TooManyAttempts(GatewayError):
    """With keys that are none."""

    status = 429
    type = "invalid_request_error"
    code = "too_many_attempts"

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__(
            f"Too many wrong keys from this address; retry in {whole_seconds(retry_after_ms)} s."
        )
        self.retry_after_ms = retry_after_ms


class NotAllowed(GatewayError):
    """The key is good, but not for this."""

    status = 403
    type = "invalid_request_error"


class EndpointNotAllowed(NotAllowed):
    code = "endpoint_not_allowed"


class ModelNotAllowed(NotAllowed):
    code = "model_not_allowed"
    param = "model"


class InvalidRequest(GatewayError):
    """The body is not what the API takes; ``param`` names the field."""

    status = 400
    type = "invalid_request_error"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = "invalid_request"
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class RequestTooLarge(GatewayError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class RequestTimeout(GatewayError):
    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class HeadersTooLarge(GatewayError):
    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class UnknownPath(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "unknown_url"


class MethodNotAllowed(GatewayError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class ModelNotFound(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"
    param = "model"


class IdempotencyMismatch(GatewayError):
    """The key has come with another body before."""

    status = 422
    type = "invalid_request_error"
    code = "idempotency_key_reused"


class AnswerNotKept(GatewayError):
    """The key's request has been answered, and its answer is not repeated any more."""

    status = 409
    type = "invalid_request_error"
    code = "answer_not_kept"


class RateLimited(GatewayError):
    """Refused by a rate; ``limit`` is ``"tokens"``, ``"requests"`` or ``"concurrent_requests"``."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, limit: str, retry_after_ms: int) -> None:
        super().__init__(message)
        self.limit = limit
        self.retry_after_ms = retry_after_ms


class InsufficientQuota(GatewayError):
    """Refused by a budget: no use in trying again before its period ends."""

    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"

    def __init__(self, message: str, *, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class Unavailable(GatewayError):
    """Something the gateway needs is away; the request may be sent again."""

    status = 503
    code = "service_unavailable"
    retry_after_ms = 1_000


class PolicyUnavailable(Unavailable):
    code = "policy_unavailable"


class PolicyStoreUnavailable(Unavailable):
    code = "policy_store_unavailable"


class PolicyAbsent(GatewayError):
    """Nobody has written one yet."""

    status = 404
    code = "policy_absent"


class UnknownPolicyVersion(GatewayError):
    status = 404
    code = "policy_version_unknown"


class PolicyConflict(GatewayError):
    """Somebody else was faster: read it again."""

    status = 412
    code = "policy_conflict"


class PolicyRefused(GatewayError):
    """It is no policy; the message names the path of the fault."""

    status = 422
    type = "invalid_request_error"
    code = "policy_refused"


class UnknownName(GatewayError):
    """Of a tenant, or a key."""

    status = 404
    type = "invalid_request_error"
    code = "unknown_name"


class PreconditionRequired(GatewayError):
    status = 428
    type = "invalid_request_error"
    code = "precondition_required"


class AdminUnauthorized(GatewayError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_token"


class RoleMissing(GatewayError):
    status = 403
    type = "invalid_request_error"
    code = "role_missing"


class QuotaUnavailable(Unavailable):
    code = "quota_unavailable"


class QuotaRefused(QuotaUnavailable):
    """The store is there, but refuses the commands; ``reason`` is its word for why.

    Or we refuse it.  ``detail``: for whoever reads the log; no secret.
    """

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__("The quota store cannot decide.")
        self.reason = reason
        self.detail = detail


class QuotaUnanswered(QuotaUnavailable):
    """The call was sent: it may have taken effect although no answer came."""


class SpoolUnavailable(Unavailable):
    code = "metering_unavailable"


class NoReplicaAvailable(Unavailable):
    """Nobody has begun this request, and nobody can now."""

    code = "server_is_overloaded"


class Overloaded(GatewayError):
    """No replica would give the first token in time; nobody has begun this request."""

    status = 429
    code = "server_is_overloaded"

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__(
            "No replica can begin to answer in time now; "
            f"retry in {whole_seconds(retry_after_ms)} s."
        )
        self.retry_after_ms = retry_after_ms


class TokenizerUnavailable(GatewayError):
    """Prompts are estimated instead; no client reads this."""


class ShuttingDown(Unavailable):
    code = "shutting_down"


class UpstreamError(GatewayError):
    """The replica did not do its part."""

    status = 502
    code = "upstream_error"


class UpstreamUnreachable(UpstreamError):
    """No connection: nothing of the request was sent, so another replica may be tried."""


class CredentialRefused(UpstreamError):
    """Ours, by a server of another owner: nothing about it is for the client to read."""


class UpstreamAnswerTooLarge(UpstreamError):
    """So it would be from any replica."""


class UpstreamBusy(UpstreamError):
    """It says itself when to come again."""

    status = 503
    code = "server_is_overloaded"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"The replica is overloaded; retry in {retry_after_s} s.")
        self.retry_after_ms = retry_after_s * 1000


class UpstreamTimeout(UpstreamError):
    status = 504
    code = "upstream_timeout"


class AnswerTimeout(GatewayError):
    """Ours: the answer as a whole took too long, whoever was slow."""

    status = 504
    code = "answer_timeout"


class UpstreamRefused(GatewayError):
    """The replica's own 4xx: passed on as it came, in OpenAI's shape."""

    def __init__(self, status: int, error: bytes) -> None:
        super().__init__(f"the replica answered {status}")
        self.code = "upstream_refused"
        self.upstream_status = status
        self.error = error  # an encoded OpenAI error body

    @property
    def is_clients_fault(self) -> bool:
        return 400 <= self.upstream_status < 500


class SegmentUnreadable(OSError):
    """One file of the spool's; the others may be read all the same."""


class Interrupted(Exception):
    """The wait is over before its end; ``error`` is for a client that is still there."""

    def __init__(self, outcome: Outcome, error: GatewayError | None = None) -> None:
        super().__init__(outcome.value)
        self.outcome = outcome
        self.error = error
