"""What is kept of a request whose engine died: exact for each choice that had ended."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from contracts.replica_usage import ReplicaUsage, decode_replica_usage
from contracts.spool import unframe
from replica.api.witness import Asked, Witness
from replica.engine.live_request import LiveRequest
from replica.engine.messages import Delta, FinishReason, SamplingParams, Usage
from replica.engine.served_names import ServedNames
from replica.engine.submission import Work
from replica.errors import EngineDied
from replica.usage_journal import UsageJournal

AT = datetime(2026, 11, 30, tzinfo=UTC)
NUM_PROMPT_TOKENS = 100


def ended(usage: Usage) -> Delta:
    return Delta(sequence_id=0, num_tokens=2, finish_reason=FinishReason.LENGTH, usage=usage)


FIRST = ended(Usage(prompt_tokens=100, cached_prompt_tokens=64, completion_tokens=5))
OTHER = ended(Usage(completion_tokens=7))
RUNS = Delta(sequence_id=0, num_tokens=3)


def witnessed(folder: Path, deltas: Sequence[Delta]) -> ReplicaUsage:
    """Of a request with a choice for each delta, when the engine has died after them."""
    journal = UsageJournal(folder, boot_id="0123456789ab00000000", max_bytes=1 << 16)
    journal.start()
    work = Work(prompt_token_ids=[1] * NUM_PROMPT_TOKENS, params=SamplingParams(max_tokens=9))
    witness = Witness(journal, ServedNames("m"), lambda: AT)
    live = LiveRequest("r", 0.0, is_abort_wanted=False)
    asked = Asked(
        event_id=None, tenant_id=None, is_locally_admitted=False, endpoint="chat", arrived_at=AT
    )
    live.begin(range(len(deltas)), witness.on_end(asked, work, is_stream=True))
    for choice, delta in zip(live.choices, deltas, strict=True):
        live.push(choice, delta)
    live.fail(EngineDied("it is gone"))
    journal.stop(60.0)
    (segment,) = folder.iterdir()
    return decode_replica_usage(unframe(segment.read_bytes()))


@pytest.mark.parametrize(
    ("deltas", "uncached", "cached", "output"),
    [
        ((FIRST, RUNS), 36, 64, 5 + 3),
        ((RUNS, OTHER), 100, 0, 3 + 7),
        ((Delta(sequence_id=0), Delta(sequence_id=0)), 0, 0, 0),
    ],
    ids=["the-first-ended", "another-ended", "none-had-begun"],
)
def test_choices_that_had_ended_are_told_as_the_engine_counted_them(
    tmp_path: Path, deltas: Sequence[Delta], uncached: int, cached: int, output: int
) -> None:
    usage = witnessed(tmp_path, deltas)
    assert not usage.is_final
    assert (usage.input_uncached_tokens, usage.input_cache_read_tokens) == (uncached, cached)
    assert usage.output_text_tokens == output
