"""Policy documents as people write them: without tags, and held to every name they write.

Gateways ignore members that they do not know, so that an old one reads a new document.  A person's
misspelt member must not be ignored: it would be a limit that is not there.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from contracts.errors import ContractError
from contracts.policy import PolicyDocument, decode_policy_document

_TAG = "type"
_document_type = inspect.type_info(PolicyDocument)


def to_plain(document: PolicyDocument) -> dict[str, Any]:
    """JSON's own types, without tags."""
    plain = _without_tags(msgspec.json.decode(msgspec.json.encode(document)))
    assert isinstance(plain, dict)
    return plain


def from_plain(plain: Any) -> PolicyDocument:  # whatever a parser made of a person's text
    """Raises ContractError, naming the path of the fault."""
    if not isinstance(plain, dict):
        raise ContractError("policy document: $: expected members such as 'tenants'")
    for path in unknown_members(plain):
        raise ContractError(f"policy document: {path}: there is no such member")
    if "tenants" not in plain:
        raise ContractError("policy document: $.tenants: is missing; of none at all, it is []")
    document = decode_policy_document(msgspec.json.encode({"version": 0, **plain}, enc_hook=str))
    for path in unprintable_texts(plain):
        raise ContractError(f"policy document: {path}: expected printable characters only")
    for index, tenant in enumerate(document.tenants):
        if "" in tenant.providers:
            path = f"$.tenants[{index}].providers[{tenant.providers.index('')}]"
            raise ContractError(f"policy document: {path}: expected a name")
    return document


def unprintable_texts(plain: Any, path: str = "$") -> Iterator[str]:  # any JSON
    """Paths of texts, and of members by such names, that could forge what a terminal shows."""
    if isinstance(plain, str):
        if not plain.isprintable():
            yield path
    elif isinstance(plain, list):
        for index, member in enumerate(plain):
            yield from unprintable_texts(member, f"{path}[{index}]")
    elif isinstance(plain, dict):
        for name, member in plain.items():
            if isinstance(name, str) and not name.isprintable():
                yield f"{path}.{name!a}"
            else:
                yield from unprintable_texts(member, f"{path}.{name}")


def unknown_members(plain: Any) -> Iterator[str]:  # any JSON
    """Paths of members that the document would ignore."""
    yield from _unknown(plain, _document_type, "$")


def _unknown(value: Any, type_: inspect.Type, path: str) -> Iterator[str]:  # any JSON
    if isinstance(type_, inspect.UnionType):
        for part in type_.types:
            yield from _unknown(value, part, path)
    elif isinstance(type_, inspect.VarTupleType) and isinstance(value, list):
        for index, member in enumerate(value):
            yield from _unknown(member, type_.item_type, f"{path}[{index}]")
    elif isinstance(type_, inspect.StructType) and isinstance(value, dict):
        fields = {field.encode_name: field.type for field in type_.fields}
        for name, member in value.items():
            if name in fields:
                yield from _unknown(member, fields[name], f"{path}.{name}")
            elif name != _TAG:
                yield f"{path}.{name}"


def _without_tags(value: Any) -> Any:  # any JSON
    if isinstance(value, dict):
        return {name: _without_tags(member) for name, member in value.items() if name != _TAG}
    if isinstance(value, list):
        return [_without_tags(member) for member in value]
    return value
