"""The policy file that gateways read: edited by one process at a time, replaced whole."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from contracts.errors import ContractError
from contracts.policy import PolicyDocument, decode_policy_document, encode_policy_document
from pandal.errors import StateUnreadable
from pandal.file_lock import locked
from pandal.private_file import replace_private

_EMPTY = PolicyDocument(version=0)


def read_policies(path: Path) -> PolicyDocument:
    """Raises StateUnreadable.  A file that does not exist yet is version 0."""
    try:
        return decode_policy_document(path.read_bytes())
    except FileNotFoundError:
        return _EMPTY
    except ContractError as exc:
        raise StateUnreadable(f"{path}: {exc}") from exc


def edit_policies(path: Path, edit: Callable[[PolicyDocument], PolicyDocument]) -> PolicyDocument:
    """Applies ``edit`` to the current document; no edit of another process is lost."""
    with locked(path):
        before = read_policies(path)
        after = msgspec.structs.replace(edit(before), version=before.version + 1)
        payload = encode_policy_document(after)
        decode_policy_document(payload)  # a document that gateways refuse is never written
        replace_private(path, payload)
        return after
