"""The policy document as the command line edits it: in a local file, or over an admin API.

Every edit names what it was made from: one made from yesterday's document is refused, not merged.
"""

import contextlib
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
from contracts.policy_keys import LastKeys, no_last_keys, rolled_back
from gateway.errors import GatewayError, PolicyAbsent, PolicyConflict
from gateway.policy_documents.policy_file import PolicyFile
from gateway.policy_documents.port import StoredPolicy
from pandal.errors import EditConflict, NotFound, StateUnreadable

_EMPTY: Final = PolicyDocument(version=0)
_LOOKED_BACK: Final = 20  # versions, for one that is good
_MAX_TRIES: Final = 100  # against editors that are always faster
_BUSY: Final = "somebody else edits the policy all the time"

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

    def roll_back(self, number: int, why: str) -> PolicyDocument:
        """Also where what is there now is no policy.

        Raises NotFound, EditConflict, ContractError.
        """

    def history(self, limit: int) -> Sequence[PolicyChange]:
        """Newest first."""

    def version(self, number: int) -> PolicyDocument:
        """Raises NotFound."""


def edited(access: PolicyAccess, edit: Edit, *, action: str, why: str) -> PolicyDocument:
    """Applies ``edit`` to the current document; no edit of somebody else is lost."""
    for _ in range(_MAX_TRIES):
        found = access.current()
        after = edit(found.document)
        try:
            return access.replace(after, expected=found.etag, action=action, why=why)
        except EditConflict:
            continue
    raise EditConflict(_BUSY)


class LocalPolicies:
    """A file that no other machine edits."""

    def __init__(self, path: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._file = PolicyFile(path)
        self._now = now
        self.where = str(path)

    def current(self) -> CurrentPolicy:
        stored = self._stored()
        if stored is None:
            return CurrentPolicy(_EMPTY, None)
        return CurrentPolicy(self._decoded(stored.payload), stored.etag)

    def replace(
        self, document: PolicyDocument, *, expected: str | None, action: str, why: str
    ) -> PolicyDocument:
        return self._write(self.current().document, document, expected, action, why)

    def roll_back(self, number: int, why: str) -> PolicyDocument:
        older = self.version(number)
        said = f"back to version {number}{': ' if why else ''}{why}"
        for _ in range(_MAX_TRIES):
            before = self._to_edit()
            last = self._last_keys(before.document, older, number)
            after = rolled_back(before.document, older, self._now(), last)
            try:
                return self._write(before.document, after, before.etag, "rollback", said)
            except EditConflict:
                continue
        raise EditConflict(_BUSY)

    def _last_keys(self, before: PolicyDocument, older: PolicyDocument, oldest: int) -> LastKeys:
        """As far as versions are kept without a gap: what is in one may be that a key went."""
        last = no_last_keys(before, older)
        for number in range(before.version - 1, oldest - 1, -1):
            if not last.unseen:
                break
            try:
                last = last.or_of(self.version(number))
            except (NotFound, StateUnreadable):
                break
        return last

    def _write(
        self,
        before: PolicyDocument,
        document: PolicyDocument,
        expected: str | None,
        action: str,
        why: str,
    ) -> PolicyDocument:
        after = msgspec.structs.replace(document, version=before.version + 1)
        payload = encode_policy_document(after)
        decode_policy_document(payload)  # a document that gateways refuse is never written
        editing = Editing(self._now(), getpass.getuser(), action, why)
        change = change_of(before, after, payload, editing)
        try:
            self._file.write(payload, change, expected=expected)
        except PolicyConflict as exc:
            raise EditConflict(str(exc)) from exc
        except GatewayError as exc:
            raise StateUnreadable(str(exc)) from exc
        return after

    def history(self, limit: int) -> Sequence[PolicyChange]:
        try:
            return self._file.history(limit)
        except GatewayError as exc:
            raise StateUnreadable(str(exc)) from exc

    def version(self, number: int) -> PolicyDocument:
        try:
            return self._decoded(self._file.version(number))
        except GatewayError as exc:
            raise NotFound(str(exc)) from exc

    def _stored(self) -> StoredPolicy | None:
        try:
            return self._file.read()
        except PolicyAbsent:
            return None
        except GatewayError as exc:
            raise StateUnreadable(str(exc)) from exc

    def _to_edit(self) -> CurrentPolicy:
        """The last good one, where what is there now is no policy."""
        stored = self._stored()
        if stored is None:
            return CurrentPolicy(_EMPTY, None)
        try:
            return CurrentPolicy(self._decoded(stored.payload), stored.etag)
        except StateUnreadable:
            for change in self.history(_LOOKED_BACK):
                with contextlib.suppress(StateUnreadable, NotFound):
                    return CurrentPolicy(self.version(change.version), stored.etag)
            raise

    def _decoded(self, payload: bytes) -> PolicyDocument:
        try:
            return decode_policy_document(payload)
        except ContractError as exc:
            raise StateUnreadable(f"{self.where}: {exc}") from exc
