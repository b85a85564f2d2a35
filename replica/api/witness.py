"""The second witness's side of a request: whom it is for, and what the engine counted for it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from starlette.requests import Request

from contracts.errors import ContractError
from contracts.names import (
    HEADER_EVENT_ID,
    HEADER_LOCALLY_ADMITTED,
    HEADER_TENANT_ID,
    tenant_id,
)
from contracts.replica_usage import ReplicaUsage
from replica.api.headers import printable
from replica.engine.live_request import LiveRequest, OnEnd, ignore_end, sum_usage
from replica.engine.messages import Usage
from replica.engine.served_names import ServedNames
from replica.engine.submission import Work
from replica.errors import InvalidRequest
from replica.usage_journal import UsageJournal


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says of itself before its body is read."""

    event_id: str | None
    tenant_id: str | None
    is_locally_admitted: bool
    endpoint: str
    arrived_at: datetime


@dataclass(frozen=True, slots=True)
class Witness:
    journal: UsageJournal | None  # None: nothing is kept
    names: ServedNames
    now: Callable[[], datetime]

    def asked(self, request: Request, endpoint: str) -> Asked:
        """Raises InvalidRequest."""
        return Asked(
            event_id=printable(request, HEADER_EVENT_ID),
            tenant_id=_tenant_id(request),
            is_locally_admitted=HEADER_LOCALLY_ADMITTED in request.headers,
            endpoint=endpoint,
            arrived_at=self.now(),
        )

    def on_end(self, asked: Asked, work: Work, *, is_stream: bool) -> OnEnd:
        if self.journal is None:
            return ignore_end
        return partial(
            self._note,
            asked=asked,
            num_prompt_tokens=len(work.prompt_token_ids),
            num_resumed_tokens=len(work.resume_token_ids),
            is_stream=is_stream,
            adapter=work.adapter,
        )

    def _note(
        self,
        live: LiveRequest,
        *,
        asked: Asked,
        num_prompt_tokens: int,
        num_resumed_tokens: int,
        is_stream: bool,
        adapter: int | None,
    ) -> None:
        assert self.journal is not None
        usage = _usage(live, num_prompt_tokens + num_resumed_tokens)
        self.journal.append(
            lambda boot_id, seq: ReplicaUsage(
                event_id=asked.event_id,
                request_id=live.request_id,
                tenant_id=asked.tenant_id,
                model=self.names.of(adapter),
                endpoint=asked.endpoint,
                is_stream=is_stream,
                finish_reasons=tuple(choice.finish_reason for choice in live.choices),
                is_final=live.is_counted,
                input_uncached_tokens=usage.prompt_tokens - usage.cached_prompt_tokens,
                input_cache_read_tokens=usage.cached_prompt_tokens,
                output_text_tokens=usage.completion_tokens,
                resumed_tokens=max(0, usage.prompt_tokens - num_prompt_tokens),
                arrived_at=asked.arrived_at,
                finished_at=self.now(),
                replica_boot_id=boot_id,
                replica_seq=seq,
                is_locally_admitted=asked.is_locally_admitted,
                adapter=None if adapter is None else self.names.of(adapter),
                adapter_of=None if adapter is None else self.names.model,
            )
        )


def _usage(live: LiveRequest, num_read_tokens: int) -> Usage:
    """The engine's count of each choice that has ended; of one it died over, what was seen of it.

    The prompt is the first choice's: whoever has a token of that has read it.
    """
    return sum_usage(
        choice.usage
        if choice.finish_reason is not None
        else Usage(
            prompt_tokens=num_read_tokens if index == 0 and choice.num_tokens > 0 else 0,
            completion_tokens=choice.num_tokens,
        )
        for index, choice in enumerate(live.choices)
    )


def _tenant_id(request: Request) -> str | None:
    value = request.headers.get(HEADER_TENANT_ID)
    try:
        return None if value is None else tenant_id(value)
    except ContractError as exc:
        raise InvalidRequest(str(exc), param=HEADER_TENANT_ID) from exc
