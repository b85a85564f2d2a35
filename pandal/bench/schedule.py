"""What a run will send and when, complete before it starts.

Pure in the seed: arrivals, tenants and prompts each have their own stream of randomness, so that
another rate does not change the prompts.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import msgspec

from pandal.bench.arrivals import ArrivalProcess, until
from pandal.bench.tenants import Tenant
from pandal.bench.workload import Conversation, Turn, Workload
from pandal.errors import BadOption


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation of one tenant."""

    number: int
    tenant: Tenant
    conversation: Conversation


@dataclass(frozen=True, slots=True)
class Arrival:
    offset_s: float
    session: Session


@dataclass(frozen=True, slots=True)
class RequestStyle:
    """What every request of a run says besides its prompt."""

    model: str
    is_exact_length: bool  # ``ignore_eos``, which vLLM-like servers know and OpenAI's refuses
    temperature: float = 0.0


class Sessions:
    """Numbered sessions, the same whenever asked.

    Raises BadOption, at once, for a workload that names a tenant there is not.
    """

    def __init__(self, workload: Workload, tenants: Sequence[Tenant], seed: int) -> None:
        self._workload = workload
        self._tenants = tuple(tenants)
        self._weights = [tenant.weight for tenant in tenants]
        self._by_name = {tenant.name: tenant for tenant in tenants}
        self._seed = seed
        if unknown := sorted(workload.tenant_names - self._by_name.keys()):
            raise BadOption(f"the trace names tenants that --tenants does not: {unknown}")

    def session(self, number: int) -> Session:
        conversation = self._workload.conversation(number, self._seed)
        return Session(number, self._tenant(conversation, number), conversation)

    def endless(self) -> Iterator[Session]:
        return map(self.session, count())

    def _tenant(self, conversation: Conversation, number: int) -> Tenant:
        if conversation.tenant is None:
            rng = random.Random(f"{self._seed}/tenant/{number}")
            return rng.choices(self._tenants, self._weights)[0]
        return self._by_name[conversation.tenant]


def open_schedule(
    process: ArrivalProcess,
    sessions: Sessions,
    seed: int,
    *,
    duration_s: float,
    num_sessions: int | None,
) -> list[Arrival]:
    rng = random.Random(f"{seed}/arrivals")
    offsets_s = until(process, rng, duration_s=duration_s, num_arrivals=num_sessions)
    return [Arrival(at_s, sessions.session(n)) for n, at_s in enumerate(offsets_s)]


def body_of(turn: Turn, style: RequestStyle) -> bytes:
    """A streamed chat completion that asks for its usage."""
    body: dict[str, object] = {
        "model": style.model,
        "messages": [{"role": m.role, "content": m.content} for m in turn.messages],
        "max_tokens": turn.max_tokens,
        "temperature": style.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if style.is_exact_length:
        body["ignore_eos"] = True
    return msgspec.json.encode(body)
