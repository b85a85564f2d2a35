"""The policy file, as a snapshot in memory.

The file is looked at every fraction of a second and read again when it changed.  A file that
cannot be read or decoded leaves the last good snapshot in force: an operator's typing error must
not lock every tenant out.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contracts.admission import AdmissionPolicy
from contracts.errors import ContractError
from contracts.policy import (
    ApiKeyRecord,
    Limits,
    PolicyDocument,
    TenantPolicy,
    decode_policy_document,
)
from contracts.quota import ModelPrice
from gateway.worker_thread import WorkerThread

logger = logging.getLogger(__name__)

_SALT_PERSON = b"pandal.salt"  # keeps salts apart from the key hashes made with the same pepper


@dataclass(frozen=True, slots=True)
class Grant:
    """What one API key stands for."""

    tenant: TenantPolicy
    key: ApiKeyRecord
    limits: Limits
    admission: AdmissionPolicy
    salt: bytes  # [32] secret of the tenant: seeds cache salts and prefix affinity
    prices: Mapping[str, ModelPrice] = field(default_factory=dict)  # by model, for budgets in money


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    grants: Mapping[str, Grant]  # by key hash


def snapshot_of(document: PolicyDocument, pepper: bytes) -> PolicySnapshot:
    grants: dict[str, Grant] = {}
    prices = {price.model: price for price in document.prices}
    for tenant in document.tenants:
        salt = hashlib.blake2b(
            tenant.tenant_id.encode(), key=pepper, person=_SALT_PERSON, digest_size=32
        ).digest()
        limits, admission = tenant.limits(), tenant.admitted_by()
        for key in tenant.keys:
            grants[key.key_hash] = Grant(tenant, key, limits, admission, salt, prices)
    return PolicySnapshot(grants)


class PolicyStore:
    """``current`` is replaced, never changed, so that any thread may read it at any time.

    ``None`` until a first good file was read.
    """

    def __init__(self, path: Path, pepper: bytes) -> None:
        self._path = path
        self._pepper = pepper
        self._seen: tuple[int, int, int] | None = None  # modification time (ns), inode, bytes
        self._failure: str | None = None
        self.current: PolicySnapshot | None = None

    def refresh(self) -> None:
        """Reads the file if it changed; never raises.  Before ``watch``, or from its thread."""
        try:
            status = self._path.stat()
            identity = (status.st_mtime_ns, status.st_ino, status.st_size)
            if identity == self._seen:
                return
            document = decode_policy_document(self._path.read_bytes())
        except OSError as exc:
            self._refuse(f"{type(exc).__name__} {exc.errno}")
            return
        except ContractError as exc:
            self._seen = identity
            self._refuse(str(exc))
            return
        self._seen, self._failure = identity, None
        self.current = snapshot_of(document, self._pepper)
        logger.info("policy loaded", extra={"version": document.version})

    async def watch(self, poll_interval_s: float) -> None:
        """Runs until cancelled.  While the file system hangs, the last good snapshot stands."""
        reader = WorkerThread("policy-reader")
        try:
            while True:
                await asyncio.sleep(poll_interval_s)
                await reader.call(self.refresh)
        finally:
            reader.stop()

    def _refuse(self, failure: str) -> None:
        if failure != self._failure:  # once per fault, not four times a second
            fields = {"path": str(self._path), "error": failure}
            if self.current is None:
                logger.error("not ready: waiting for a good policy file", extra=fields)
            else:
                logger.error("policy file refused, keeping the last good one", extra=fields)
        self._failure = failure
