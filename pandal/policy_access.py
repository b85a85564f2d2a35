"""The policy document as the command line edits it: in a local file, or over an admin API.

Every edit names what it was made from: one made from yesterday's document is refused, not merged.
"""

import getpass
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

import msgspec

from contracts.errors import ContractError
from contracts.policy import PolicyDocument, decode_policy_document, encode_policy_document
from contracts.policy_change import Editing, PolicyChange, change_of
from gateway.errors import GatewayError, PolicyAbsent, PolicyConflict
from gateway.policy_documents.policy_file import PolicyFile
from pandal.errors import EditConflict, NotFound, StateUnreadable

_EMPTY: Final = PolicyDocument(version=0)
_MAX_TRIES: Final = 100  # against editors that are always faster

Edit = Callable[[PolicyDocument], PolicyDocument]


@dataclass(frozen=True, slots=True)
class CurrentPolicy:
    document: PolicyDocument
    etag: str | None  # None: there is none yet


class PolicyAccess(Protocol):
    @property
    def where(self) -> str:
        """For people."""

    def current(self) -> CurrentPolicy:
        """Raises StateUnreadable, Unreachable."""

    def replace(
        self, document: PolicyDocument, *, expected: str | None, action: str, why: str
    ) -> PolicyDocument:
        """As it is stored, with its version.  Raises EditConflict, ContractError."""

    def history(self, limit: int) -> Sequence[PolicyChange]:
        """Newest first."""

    def version(self, number: int) -> PolicyDocument:
        """Raises NotFound."""


def edited(access: PolicyAccess, edit: Edit, *, action: str, why: str) -> PolicyDocument:
    """Applies ``edit`` to the current document; no edit of somebody else is lost."""
    for _ in range(_MAX_TRIES - 1):
        found = access.current()
        after = edit(found.document)
        try:
            return access.replace(after, expected=found.etag, action=action, why=why)
        except EditConflict:
            continue
    raise EditConflict("somebody else edits the policy all the time")


class LocalPolicies:
    """A file that no other machine edits."""

    def __init__(self, path: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._file = PolicyFile(path)
        self._now = now
        self.where = str(path)

    def current(self) -> CurrentPolicy:
        try:
            stored = self._file.read()
        except PolicyAbsent:
            return CurrentPolicy(_EMPTY, None)
        except GatewayError as exc:
            raise StateUnreadable(str(exc)) from exc
        assert stored is not None, "nothing was excepted"
        return CurrentPolicy(self._decoded(stored.payload), stored.etag)

    def replace(
        self, document: PolicyDocument, *, expected: str | None, action: str, why: str
    ) -> PolicyDocument:
        before = self.current()
        after = msgspec.structs.replace(document, version=before.document.version + 1)
        payload = encode_policy_document(after)
        decode_policy_document(payload)  # a document that gateways refuse is never written
        editing = Editing(self._now(), getpass.getuser(), action, why)
        change = change_of(before.document, after, payload, editing)
        try:
            self._file.write(payload, change, expected=expected)
        except PolicyConflict as exc:
            raise EditConflict(str(exc)) from exc
        except GatewayError as exc:
            raise StateUnreadable(str(exc)) from exc
        return after

    def history(self, limit: int) -> Sequence[PolicyChange]:
        return self._file.history(limit)

    def version(self, number: int) -> PolicyDocument:
        try:
            return self._decoded(self._file.version(number))
        except GatewayError as exc:
            raise NotFound(str(exc)) from exc

    def _decoded(self, payload: bytes) -> PolicyDocument:
        try:
            return decode_policy_document(payload)
        except ContractError as exc:
            raise StateUnreadable(f"{self.where}: {exc}") from exc
