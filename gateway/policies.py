"""The policy in force, as a snapshot: what applies to each key is worked out as it is adopted.

A document that is no good leaves the last good one in force: an operator's typing error must not
lock every tenant out.  Nor must a store that is away.  Both are told, in the log and the metrics.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from contracts.errors import ContractError
from contracts.policy import PolicyDocument, decode_policy_document
from gateway.grants import Grant, PolicySnapshot, snapshot_of

__all__ = ["Grant", "LivePolicies", "PolicySnapshot"]

logger = logging.getLogger(__name__)


class LivePolicies:
    """``current`` is replaced, never changed, so that any thread may read it at any time.

    ``None`` until a first good document was read.  One thread adopts, and looks at the clock: of
    two at once, the one that ends last would keep what is old in force.
    """

    def __init__(self, where: str, pepper: bytes, wall_s: Callable[[], float]) -> None:
        self._where = where
        self._pepper = pepper
        self._wall_s = wall_s
        self._document: PolicyDocument | None = None  # that the snapshot is of
        self._failure: str | None = None
        self.current: PolicySnapshot | None = None
        self.is_refused = False  # the stored document is no good
        self.is_store_lost = False

    def adopt(self, payload: bytes) -> bool:
        """Never raises; ``False`` if it is no good.  May take a second for ten thousand tenants."""
        try:
            document = decode_policy_document(payload)
        except ContractError as exc:
            self.is_refused = True
            self._tell("policy refused, keeping the last good one", str(exc))
            return False
        self._resolve(document)
        self.is_refused, self._failure = False, None
        logger.info("policy loaded", extra={"version": document.version})
        return True

    def look_at_clock(self) -> None:
        """What was worked out holds until a time that the snapshot tells.  Takes as long."""
        current, document = self.current, self._document
        if current is not None and document is not None and self._now() >= current.valid_until:
            self._resolve(document)

    def store_lost(self, failure: str) -> None:
        self.is_store_lost = True
        self._tell("policy store lost, keeping the last good policy", failure)

    def store_back(self) -> None:
        if self.is_store_lost:
            self.is_store_lost, self._failure = False, None
            logger.info("policy store is back", extra={"path": self._where})

    def _resolve(self, document: PolicyDocument) -> None:
        self._document = document
        self.current = snapshot_of(document, self._pepper, self._now())

    def _tell(self, message: str, failure: str) -> None:
        if failure != self._failure:  # once per fault, not four times a second
            if self.current is None:
                message = "not ready: waiting for a good policy"
            logger.error(message, extra={"path": self._where, "error": failure})
        self._failure = failure

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._wall_s(), UTC)
