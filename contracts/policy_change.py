"""What an edit of a policy document did, who made it, and why: one entry of the audit log."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from contracts.errors import UNDECODABLE, ContractError
from contracts.policy import PolicyDocument
from contracts.usage import UtcDatetime

_NAMES: Final = ("tenant_id", "organisation_id", "name", "key_id", "model", "window", "is_shadow")
_TOLD: Final = 50  # changes of one edit; the document itself has them all
_SECRETS: Final = ("key_hash",)  # keyed hashes: no secret, and nothing for people
MISSING: Final = "(none)"


class FieldChange(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="policy.field_change.v1"
):
    """``MISSING`` where there was, or is, nothing."""

    path: str  # tenants[acme].rules[model=m].tokens_per_minute
    before: Any  # JSON
    after: Any  # JSON

    @property
    def words(self) -> str:
        return f"{self.path}: {_words(self.before)} -> {_words(self.after)}"


class PolicyChange(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="policy.change.v1"
):
    version: int  # that it made
    etag: str  # of the document that it made
    at: UtcDatetime
    who: str
    action: str  # edit, rollback, import, key.create, ...
    why: str
    num_changes: int
    changes: tuple[FieldChange, ...]  # the first of them


_decoder = msgspec.json.Decoder(PolicyChange)


def decode_policy_change(payload: bytes) -> PolicyChange:
    """Raises ContractError."""
    try:
        return _decoder.decode(payload)
    except UNDECODABLE as exc:
        raise ContractError(f"policy change: {exc}") from exc


def etag_of(payload: bytes) -> str:
    """Differs wherever the stored bytes do, also where an editor kept the version."""
    return hashlib.blake2b(payload, digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class Editing:
    """What an edit says of itself."""

    at: datetime
    who: str
    action: str
    why: str


def change_of(
    before: PolicyDocument, after: PolicyDocument, payload: bytes, editing: Editing
) -> PolicyChange:
    """``payload``: ``after`` as it is stored."""
    changes = differences(before, after)
    return PolicyChange(
        version=after.version,
        etag=etag_of(payload),
        at=editing.at,
        who=editing.who,
        action=editing.action,
        why=editing.why,
        num_changes=len(changes),
        changes=tuple(changes[:_TOLD]),
    )


def differences(before: PolicyDocument, after: PolicyDocument) -> Sequence[FieldChange]:
    """Leaf by leaf, members of lists by their names.  The version is no difference."""
    old, new = (msgspec.json.decode(msgspec.json.encode(d)) for d in (before, after))
    found = _of_members({**old, "version": 0}, {**new, "version": 0}, "")
    return [change for change in found if not change.path.endswith(_SECRETS)]


def _of_members(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str
) -> Iterator[FieldChange]:
    for name in [*before, *(name for name in after if name not in before)]:
        where = f"{path}.{name}" if path else name
        yield from _of_values(before.get(name, MISSING), after.get(name, MISSING), where)


def _of_values(before: Any, after: Any, path: str) -> Iterator[FieldChange]:  # any JSON
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_members(before, after, path)
    elif _is_named(before) and _is_named(after):
        old, new = _by_name(before), _by_name(after)
        for name in [*old, *(name for name in new if name not in old)]:
            where = f"{path}[{name}]"
            yield from _of_values(old.get(name, MISSING), new.get(name, MISSING), where)
    else:
        yield FieldChange(path=path, before=_told(before), after=_told(after))


def _is_named(value: Any) -> bool:  # any JSON
    return value == MISSING or (
        isinstance(value, list) and all(isinstance(member, dict) for member in value)
    )


def _by_name(value: Any) -> dict[str, Any]:  # any JSON
    return {} if value == MISSING else {_name_of(member): member for member in value}


def _name_of(member: Mapping[str, Any]) -> str:
    """The first name that is its own, or what it selects: rules have no names."""
    for name in ("tenant_id", "organisation_id", "name"):
        if member.get(name):
            return str(member[name])
    if "key_hash" in member:
        return str(member.get("key_id", member.get("key_prefix")))
    parts = [f"{name}={_selected(member[name])}" for name in _NAMES if member.get(name)]
    return ",".join(parts) or "all"


def _selected(value: Any) -> str:  # any JSON
    if isinstance(value, dict):  # a window
        return f"{value['opens']}-{value['closes']}"
    return str(value)


def _told(value: Any) -> Any:  # any JSON
    if isinstance(value, dict):
        hidden = ("type", *_SECRETS)
        return {name: _told(member) for name, member in value.items() if name not in hidden}
    if isinstance(value, list):
        return [_told(member) for member in value]
    return value


def _words(value: Any) -> str:  # any JSON
    if value == MISSING:
        return MISSING
    return msgspec.json.encode(value).decode()
