"""The counts of a fake model server, kept and told as a replica of our own make does."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import msgspec

from contracts.replica_api import AbortedUsage
from contracts.replica_usage import ReplicaUsage
from replica.usage_journal import UsageJournal


@dataclass
class Answer:
    """One request, while its words are being made and after."""

    request_id: str
    event_id: str | None
    tenant_id: str | None
    is_locally_admitted: bool
    num_prompt_tokens: int
    arrived_at: datetime
    num_words: int = 0
    is_stopped: bool = False
    has_ended: threading.Event = field(default_factory=threading.Event)


class CountedAnswers:
    """Used from the threads of a server."""

    def __init__(self, folder: Path, model: str) -> None:
        self._model = model
        self._journal = UsageJournal(folder, boot_id=uuid4().hex[:12], max_bytes=64 << 20)
        self._journal.start()
        self._answers: dict[str, Answer] = {}
        self._lock = threading.Lock()

    def begin(self, answer: Answer) -> None:
        with self._lock:
            self._answers[answer.request_id] = answer

    def counted(self, answer: Answer, words: Iterator[str]) -> Iterator[str]:
        """Each counts once it was made, whether or not it arrives; none is made after a stop."""
        for word in words:
            if answer.is_stopped:
                return
            answer.num_words += 1
            yield word

    def end(self, answer: Answer, *, endpoint: str, is_stream: bool) -> None:
        record = ReplicaUsage(
            event_id=answer.event_id,
            request_id=answer.request_id,
            tenant_id=answer.tenant_id,
            model=self._model,
            endpoint=endpoint,
            is_stream=is_stream,
            finish_reasons=("length",),
            is_final=True,
            input_uncached_tokens=answer.num_prompt_tokens,
            input_cache_read_tokens=0,
            output_text_tokens=answer.num_words,
            resumed_tokens=0,
            arrived_at=answer.arrived_at,
            finished_at=datetime.now(UTC),
            replica_boot_id="0",
            replica_seq=1,
            is_locally_admitted=answer.is_locally_admitted,
        )
        with self._lock:
            self._journal.append(
                lambda boot_id, seq: msgspec.structs.replace(
                    record, replica_boot_id=boot_id, replica_seq=seq
                )
            )
        answer.has_ended.set()

    def abort(self, request_id: str) -> AbortedUsage | None:
        """The final count; None of a request that never came."""
        answer = self._answers.get(request_id)
        if answer is None:
            return None
        answer.is_stopped = True
        answer.has_ended.wait(5.0)
        return AbortedUsage(
            request_id=request_id,
            prompt_tokens=answer.num_prompt_tokens,
            cached_prompt_tokens=0,
            completion_tokens=answer.num_words,
        )
