"""The policy document in Valkey or Redis: a hash, its versions, and a stream of its changes.

The stream is the audit log and the notification in one.  One key tag, so that one script writes all
of it, and of a cluster one node keeps it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Final

import msgspec

from contracts.errors import ContractError
from contracts.names import (
    POLICY_TAG,
    policy_changes,
    policy_current,
    policy_keys_used,
    policy_versions,
)
from contracts.policy_change import PolicyChange, decode_policy_change, etag_of
from gateway.admission.quota_store import QuotaStore, slot_of
from gateway.admission.resp import first_word, pack
from gateway.errors import (
    PolicyAbsent,
    PolicyConflict,
    PolicyStoreUnavailable,
    QuotaUnavailable,
    UnknownPolicyVersion,
)
from gateway.policy_documents.port import KEPT_VERSIONS, StoredPolicy
from gateway.resp_address import RespAddress

_CALL_DEADLINE_S: Final = 5.0  # longer than any wait for a change, or a large document
_WRITE = (resources.files("gateway.policy_documents") / "write.lua").read_text()


class ValkeyDocuments:
    """Works while ``run`` does."""

    def __init__(self, address: RespAddress) -> None:
        self._store = QuotaStore(address, _CALL_DEADLINE_S, name="policy store")
        self._slot = slot_of(POLICY_TAG)
        self.where = address.words

    async def run(self) -> None:
        """Runs until cancelled."""
        await self._store.run()

    async def read(self, unless: str | None = None) -> StoredPolicy | None:
        if unless is not None:
            etag = await self._call("HGET", policy_current(), "etag")
            if etag == unless.encode():
                return None
        found = await self._call("HMGET", policy_current(), "etag", "document")
        assert isinstance(found, list)
        stored, payload = found
        if payload is None:
            raise PolicyAbsent(f"There is no policy at {self.where}.")
        return StoredPolicy(payload, stored.decode())

    async def wait_changed(self, timeout_s: float) -> None:
        try:
            await self._call(
                *("XREAD", "COUNT", 1, "BLOCK", max(1, int(timeout_s * 1e3))),
                *("STREAMS", policy_changes(), "$"),
            )
        except PolicyStoreUnavailable:
            await asyncio.sleep(timeout_s)

    async def write(self, payload: bytes, change: PolicyChange, *, expected: str | None) -> None:
        reply = await self._call(
            *("EVAL", _WRITE, 3, policy_current(), policy_versions(), policy_changes()),
            *(expected or "", etag_of(payload), change.version, payload),
            *(msgspec.json.encode(change), KEPT_VERSIONS),
        )
        if reply != 1:
            raise PolicyConflict("The policy has changed meanwhile.")

    async def history(self, limit: int) -> Sequence[PolicyChange]:
        entries = await self._call("XREVRANGE", policy_changes(), "+", "-", "COUNT", limit)
        assert isinstance(entries, list)
        try:
            return [decode_policy_change(fields[1]) for _, fields in entries]
        except ContractError as exc:
            raise PolicyStoreUnavailable(
                f"The audit log has an entry of another kind: {exc}."
            ) from exc

    async def version(self, number: int) -> bytes:
        payload = await self._call("HGET", policy_versions(), number)
        if not isinstance(payload, bytes):
            raise UnknownPolicyVersion(
                f"There is no version {number} any more, or yet: the history lists them."
            )
        return payload

    async def note_keys_used(self, used: Mapping[str, float]) -> None:
        """By key id, in seconds since 1970."""
        flat = [part for key_id, at_s in used.items() for part in (key_id, str(int(at_s)))]
        if flat:
            await self._call("HSET", policy_keys_used(), *flat)

    async def keys_used(self) -> Mapping[str, float]:
        """As they were noted last."""
        found = await self._call("HGETALL", policy_keys_used())
        assert isinstance(found, list)
        return {k.decode(): float(v) for k, v in zip(found[::2], found[1::2], strict=True)}

    async def _call(self, *arguments: str | bytes | int) -> object:
        try:
            reply = await self._store.call(pack(*arguments), self._slot)
        except QuotaUnavailable as exc:
            raise PolicyStoreUnavailable("The policy store does not answer.") from exc
        refusal = first_word(reply)
        if refusal is not None:
            raise PolicyStoreUnavailable(f"The policy store refuses: {refusal}.")
        return reply
