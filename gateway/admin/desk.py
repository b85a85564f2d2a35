"""Edits of the stored policy: checked before they are written, and with who made them and why."""

import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from contracts.errors import ContractError, Unknown
from contracts.policy import PolicyDocument, decode_policy_document, encode_policy_document
from contracts.policy_change import Editing, PolicyChange, change_of, etag_of
from contracts.policy_keys import LastKeys, no_last_keys, rolled_back
from gateway.admin.callers import Caller, Role
from gateway.errors import (
    PolicyAbsent,
    PolicyConflict,
    PolicyRefused,
    UnknownName,
    UnknownPolicyVersion,
)
from gateway.policy_documents.port import PolicyDocuments

_EMPTY: Final = PolicyDocument(version=0)
_MAX_TRIES: Final = 20  # against other editors
_LOOKED_BACK: Final = 20  # versions, for one that is good
_OF_OWNERS: Final = ("tiers", "organisations", "prices")

Edit = Callable[[PolicyDocument], PolicyDocument]


class Whatever(enum.Enum):
    ANY = enum.auto()  # the edit fits any document
    ABSENT = enum.auto()  # it is to be the first


Expected = str | Whatever  # an etag: the edit was made from that document


@dataclass(frozen=True, slots=True)
class Kept:
    document: PolicyDocument
    etag: str | None  # None: there is none yet


class PolicyDesk:
    def __init__(self, documents: PolicyDocuments, now: Callable[[], datetime]) -> None:
        self._documents = documents
        self.now = now

    async def current(self) -> Kept:
        """Raises PolicyStoreUnavailable; PolicyRefused where somebody else wrote what is none."""
        try:
            stored = await self._documents.read()
        except PolicyAbsent:
            return Kept(_EMPTY, None)
        assert stored is not None, "nothing was excepted"
        return Kept(_decoded(stored.payload), stored.etag)

    async def edited(
        self,
        edit: Edit,
        caller: Caller,
        *,
        action: str,
        why: str,
        expected: Expected = Whatever.ANY,
    ) -> Kept:
        """In place of what is no good, the last good document is edited.

        Raises PolicyConflict, PolicyRefused, UnknownName, RoleMissing.
        """

        async def made(before: PolicyDocument) -> PolicyDocument:
            return edit(before)

        return await self._edited(made, caller, action=action, why=why, expected=expected)

    async def rolled_back(self, number: int, caller: Caller, *, why: str) -> Kept:
        """Raises UnknownPolicyVersion, PolicyConflict, PolicyRefused, RoleMissing."""
        older = await self.version(number)

        async def made(before: PolicyDocument) -> PolicyDocument:
            last = await self._last_keys(before, older, number)
            return rolled_back(before, older, self.now(), last)

        return await self._edited(made, caller, action="rollback", why=why, expected=Whatever.ANY)

    async def _last_keys(
        self, before: PolicyDocument, older: PolicyDocument, oldest: int
    ) -> LastKeys:
        """As far as versions are kept without a gap: what is in one may be that a key went."""
        last = no_last_keys(before, older)
        for number in range(before.version - 1, oldest - 1, -1):
            if not last.unseen:
                break
            try:
                last = last.or_of(decode_policy_document(await self._documents.version(number)))
            except (ContractError, UnknownPolicyVersion):
                break
        return last

    async def _edited(
        self,
        edit: Callable[[PolicyDocument], Awaitable[PolicyDocument]],
        caller: Caller,
        *,
        action: str,
        why: str,
        expected: Expected,
    ) -> Kept:
        for _ in range(_MAX_TRIES):
            before = await self._to_edit()
            if not _is_expected(before, expected):
                raise PolicyConflict("The policy has changed since it was read.")
            try:
                return await self._write(before, await edit(before.document), caller, action, why)
            except Unknown as exc:
                raise UnknownName(f"{exc}.") from exc
            except ContractError as exc:
                raise PolicyRefused(f"{exc}.") from exc
            except PolicyConflict:
                if expected is not Whatever.ANY:
                    raise
        raise PolicyConflict("Others edit the policy all the time.")

    async def history(self, limit: int) -> Sequence[PolicyChange]:
        return await self._documents.history(limit)

    async def version(self, number: int) -> PolicyDocument:
        """Raises UnknownPolicyVersion."""
        return _decoded(await self._documents.version(number))

    async def _to_edit(self) -> Kept:
        try:
            stored = await self._documents.read()
        except PolicyAbsent:
            return Kept(_EMPTY, None)
        assert stored is not None, "nothing was excepted"
        try:
            return Kept(decode_policy_document(stored.payload), stored.etag)
        except ContractError:
            return Kept(await self._last_good(), stored.etag)

    async def _last_good(self) -> PolicyDocument:
        """That is still kept.  Raises PolicyRefused."""
        for change in await self._documents.history(_LOOKED_BACK):
            try:
                return decode_policy_document(await self._documents.version(change.version))
            except (ContractError, UnknownPolicyVersion):
                continue
        raise PolicyRefused("What is stored is no good, and no version before it is kept.")

    async def _write(
        self, before: Kept, after: PolicyDocument, caller: Caller, action: str, why: str
    ) -> Kept:
        old = before.document
        if any(getattr(old, name) != getattr(after, name) for name in _OF_OWNERS):
            caller.require(Role.OWNER)
        after = msgspec.structs.replace(after, version=old.version + 1)
        payload = encode_policy_document(after)
        decode_policy_document(payload)
        change = change_of(old, after, payload, Editing(self.now(), caller.name, action, why))
        await self._documents.write(payload, change, expected=before.etag)
        return Kept(after, etag_of(payload))


def _is_expected(before: Kept, expected: Expected) -> bool:
    if expected is Whatever.ANY:
        return True
    return before.etag == (None if expected is Whatever.ABSENT else expected)


def _decoded(payload: bytes) -> PolicyDocument:
    try:
        return decode_policy_document(payload)
    except ContractError as exc:
        raise PolicyRefused(f"What is stored is no good: {exc}.") from exc
