"""The part of the composition root that knows where policies are kept, and who judges by them."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.auth import Authenticator
from gateway.clock import Clock
from gateway.keys_used import KeysUsed
from gateway.policies import LivePolicies
from gateway.policy_documents.file import FileDocuments
from gateway.policy_documents.valkey import ValkeyDocuments
from gateway.policy_watch import PolicyWatch
from gateway.resp_address import RespAddress, StoreTls
from gateway.settings import Settings

_FIRST_POLICY_S = 2.0  # for the store to tell it; then the gateway begins without


@dataclass(frozen=True, slots=True)
class PolicyParts:
    live: LivePolicies
    authenticator: Authenticator
    watch: PolicyWatch
    used: KeysUsed
    loops: Sequence[Callable[[], Coroutine[Any, Any, None]]]  # each runs until cancelled

    async def start(self) -> None:
        """Beside the loops, before the first request."""
        await self.watch.start(_FIRST_POLICY_S)

    async def stop(self) -> None:
        """Beside the loops, after the last request."""
        await self.used.note_last()


def wire_policies(settings: Settings, clock: Clock) -> PolicyParts:
    pepper = settings.key_pepper.get_secret_value().encode()
    store = _store(settings)
    live = LivePolicies(store.where, pepper, clock.wall_s)
    authenticator = Authenticator(live, pepper, clock)
    watch = PolicyWatch(
        store,
        live,
        interval_s=settings.policy_poll_interval_s,
        last_good=None if settings.policy_url is None else settings.policy_file,
    )
    used = KeysUsed(authenticator.turn, store)
    return PolicyParts(live, authenticator, watch, used, (store.run, watch.run, used.run))


def _store(settings: Settings) -> FileDocuments | ValkeyDocuments:
    if settings.policy_url is not None:
        url = settings.policy_url.get_secret_value()
        return ValkeyDocuments(RespAddress.parse(url, StoreTls.of(settings)))
    assert settings.policy_file is not None, "settings want one of the two"
    return FileDocuments(settings.policy_file)
