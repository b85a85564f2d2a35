"""The quota's scripts, run where a tenant lives."""

import asyncio
import logging
import math
from typing import Final

from gateway.admission.quota_scripts import Script
from gateway.admission.quota_store import QuotaStore
from gateway.admission.quota_tenants import QuotaTenant
from gateway.admission.resp import first_word
from gateway.errors import QuotaRefused

logger = logging.getLogger(__name__)

_TELL_PAUSE_S: Final = 60.0


def is_unknown_script(reply: object) -> bool:
    return first_word(reply) == "NOSCRIPT"


class ScriptRunner:
    def __init__(self, store: QuotaStore) -> None:
        self._store = store
        self._told_at_s: dict[str, float] = {}  # by the store's word for its refusal

    async def run(
        self, script: Script, tenant: QuotaTenant, arguments: bytes, num_arguments: int
    ) -> object:
        """Raises QuotaUnavailable; QuotaRefused for an error reply."""
        command = script.command(tenant.keys, arguments, num_arguments)
        reply = await self._store.call(command, tenant.slot)
        if is_unknown_script(reply):
            command = script.command_in_full(tenant.keys, arguments, num_arguments)
            reply = await self._store.call(command, tenant.slot)
        refusal = first_word(reply)
        if refusal is not None:
            self._tell(refusal)
            raise QuotaRefused(refusal)
        return reply

    def _tell(self, refusal: str) -> None:
        """Once a minute, not once a request."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._told_at_s.get(refusal, -math.inf) + _TELL_PAUSE_S:
            self._told_at_s[refusal] = now_s
            logger.error("quota store refused", extra={"reason": refusal})
