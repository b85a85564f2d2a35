"""The policy document in a file, its versions and its audit log in a folder beside it.

``policies.json`` is the current one, as an operator may edit it by hand, too.
``policies.json.history/`` holds a file for each version and ``audit.jsonl``.  Both are written
before the document is replaced: what they hold of a version that never became current does not
count.  Blocking; writers exclude each other.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from contracts.errors import UNDECODABLE, ContractError
from contracts.policy import PolicyDocument, decode_policy_document
from contracts.policy_change import Editing, PolicyChange, change_of, decode_policy_change, etag_of
from gateway.errors import (
    PolicyAbsent,
    PolicyConflict,
    PolicyStoreUnavailable,
    UnknownPolicyVersion,
)
from gateway.policy_documents.durable_file import replace_durably
from gateway.policy_documents.port import KEPT_VERSIONS, StoredPolicy

_Identity = tuple[int, int, int]  # modification time (ns), inode, bytes


class PolicyFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path.with_name(path.name + ".history")
        self._seen: tuple[_Identity, str] | None = None  # with its etag

    @property
    def where(self) -> str:
        return str(self._path)

    def read(self, unless: str | None = None) -> StoredPolicy | None:
        with _translated(self._path):
            try:
                status = self._path.stat()
                identity = (status.st_mtime_ns, status.st_ino, status.st_size)
                if unless is not None and self._seen == (identity, unless):
                    return None
                payload = self._path.read_bytes()
            except FileNotFoundError as exc:
                raise PolicyAbsent(f"There is no policy at {self._path}.") from exc
        etag = etag_of(payload)
        self._seen = identity, etag
        return None if etag == unless else StoredPolicy(payload, etag)

    def write(self, payload: bytes, change: PolicyChange, *, expected: str | None) -> None:
        with _translated(self._path), _locked(self._path):
            before = self._path.read_bytes() if self._path.exists() else None
            if (None if before is None else etag_of(before)) != expected:
                raise PolicyConflict("The policy has changed meanwhile.")
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if before is not None:
                self._keep_edit_by_hand(before)
            self._keep(payload, change)
            replace_durably(self._path, payload)

    def history(self, limit: int) -> Sequence[PolicyChange]:
        current = self._current_version()
        entries = {}  # the last entry of a version counts: one before it never became current
        for entry in self._audit():
            if current is None or entry.version <= current:
                entries[entry.version] = entry
        return [entries[number] for number in sorted(entries, reverse=True)[:limit]]

    def version(self, number: int) -> bytes:
        with _translated(self._path):
            current = self._current_version()
            if number == current:
                return self._path.read_bytes()
            path = self._version_path(number)
            if (current is not None and number > current) or not path.exists():
                raise UnknownPolicyVersion(
                    f"There is no version {number} any more, or yet: the history lists them."
                )
            return path.read_bytes()

    def note_keys_used(self, used: Mapping[str, float]) -> None:
        if not used:
            return
        with _translated(self._used_path), _locked(self._used_path):
            merged = {**self.keys_used(), **used}
            replace_durably(self._used_path, msgspec.json.encode(merged))

    def keys_used(self) -> Mapping[str, float]:
        with _translated(self._used_path):
            if not self._used_path.exists():
                return {}
            payload = self._used_path.read_bytes()
        try:
            return msgspec.json.decode(payload, type=dict[str, float])
        except UNDECODABLE:
            return {}  # it is no account

    @property
    def _used_path(self) -> Path:
        return self._path.with_name(self._path.name + ".keys-used")

    def _current_version(self) -> int | None:
        """``None``: what is there now is no policy; what was before it can still be had."""
        try:
            return decode_policy_document(self._path.read_bytes()).version
        except FileNotFoundError:
            return 0
        except ContractError:
            return None
        except OSError as exc:
            raise PolicyStoreUnavailable(f"{self._path}: {exc.strerror}") from exc

    def _keep_edit_by_hand(self, payload: bytes) -> None:
        """A document that got here without us has its entry, too."""
        try:
            document = decode_policy_document(payload)
        except ContractError:
            return  # nobody would go back to it
        path = self._version_path(document.version)
        if path.exists() and path.read_bytes() == payload:
            return
        edited_at = datetime.fromtimestamp(self._path.stat().st_mtime, UTC)
        by_hand = Editing(edited_at, "unknown", "found", "the file was edited by hand")
        change = change_of(PolicyDocument(version=0), document, payload, by_hand)
        self._keep(payload, msgspec.structs.replace(change, num_changes=0, changes=()))

    def _keep(self, payload: bytes, change: PolicyChange) -> None:
        replace_durably(self._version_path(change.version), payload)
        self._version_path(change.version - KEPT_VERSIONS).unlink(missing_ok=True)
        fd = os.open(self._audit_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(fd, "ab") as file:
            file.write(msgspec.json.encode(change) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _audit(self) -> Iterator[PolicyChange]:
        with _translated(self._path):
            if not self._audit_path.exists():
                return
            lines = self._audit_path.read_bytes().splitlines()
        for line in lines:
            try:
                yield decode_policy_change(line)
            except ContractError:
                continue  # torn: its writer was killed, and its version never became current

    @property
    def _audit_path(self) -> Path:
        return self._folder / "audit.jsonl"

    def _version_path(self, number: int) -> Path:
        return self._folder / f"{number:09d}.json"


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise PolicyStoreUnavailable(f"{path}: {exc.strerror}") from exc


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The lock is a file beside it: replacing ``path`` would replace a lock on itself."""
    fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
