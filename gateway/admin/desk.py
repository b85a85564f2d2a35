"""Edits of the stored policy: checked before they are written, and with who made them and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from contracts.errors import ContractError, Unknown
from contracts.policy import PolicyDocument, decode_policy_document, encode_policy_document
from contracts.policy_change import Editing, PolicyChange, change_of, etag_of
from gateway.admin.callers import Caller, Role
from gateway.errors import PolicyAbsent, PolicyConflict, PolicyRefused, UnknownName
from gateway.policy_documents.port import PolicyDocuments

_EMPTY: Final = PolicyDocument(version=0)
_MAX_TRIES: Final = 20  # against other editors
_OF_OWNERS: Final = ("tiers", "organisations", "prices")

Edit = Callable[[PolicyDocument], PolicyDocument]


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
        self, edit: Edit, caller: Caller, *, action: str, why: str, expected: str | None = None
    ) -> Kept:
        """``expected``: the etag that the edit was made from; ``None``: it fits any.

        Raises PolicyConflict, PolicyRefused, UnknownName, RoleMissing.
        """
        for _ in range(_MAX_TRIES):
            before = await self.current()
            if expected is not None and expected != before.etag:
                raise PolicyConflict("The policy has changed since it was read.")
            try:
                return await self._write(before, edit(before.document), caller, action, why)
            except Unknown as exc:
                raise UnknownName(f"{exc}.") from exc
            except ContractError as exc:
                raise PolicyRefused(f"{exc}.") from exc
            except PolicyConflict:
                if expected is not None:
                    raise
        raise PolicyConflict("Others edit the policy all the time.")

    async def history(self, limit: int) -> Sequence[PolicyChange]:
        return await self._documents.history(limit)

    async def version(self, number: int) -> PolicyDocument:
        """Raises UnknownPolicyVersion."""
        return _decoded(await self._documents.version(number))

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


def _decoded(payload: bytes) -> PolicyDocument:
    try:
        return decode_policy_document(payload)
    except ContractError as exc:
        raise PolicyRefused(f"What is stored is no good: {exc}.") from exc
