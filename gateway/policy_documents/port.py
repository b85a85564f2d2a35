"""What a store of policy documents does.

``tests/gateway/test_policy_documents.py`` holds every implementation to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from contracts.policy_change import PolicyChange

KEPT_VERSIONS = 500  # whole documents; the audit log keeps more


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    payload: bytes  # of any content: who reads judges it
    etag: str


class PolicyDocuments(Protocol):
    """Every call raises PolicyStoreUnavailable while the store cannot be asked."""

    @property
    def where(self) -> str:
        """For people; holds no password."""

    async def read(self, unless: str | None = None) -> StoredPolicy | None:
        """The current one; ``None`` if it still has the etag ``unless``.  Raises PolicyAbsent."""

    async def wait_changed(self, timeout_s: float) -> None:
        """Until it may have changed, or the time is up: a hint, which may be missed."""

    async def write(self, payload: bytes, change: PolicyChange, *, expected: str | None) -> None:
        """In place of the one with the etag ``expected``; ``None``: of none.

        With its entry in the audit log, and when it returns as durable as the store makes it: a
        file outlives the machine's end; Valkey may lose the last second with ``appendfsync
        everysec``, and nothing with ``always``.  Raises PolicyConflict.
        """

    async def history(self, limit: int) -> Sequence[PolicyChange]:
        """Newest first."""

    async def version(self, number: int) -> bytes:
        """Raises UnknownPolicyVersion."""

    async def note_keys_used(self, used: Mapping[str, float]) -> None:
        """By key id, in seconds since 1970.  Beside the document: it is no edit."""

    async def keys_used(self) -> Mapping[str, float]:
        """As they were noted last."""
