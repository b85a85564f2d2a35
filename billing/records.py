"""What a source hands over: raw records, and where they stand in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

KAFKA_SOURCE: Final = "kafka/"  # begins the ids of those that are partitions of a topic

EventKey = tuple[str, str]  # (tenant_id, event_id): event ids are unique only within a tenant


@dataclass(frozen=True, slots=True)
class Record:
    offset: int  # within the source: bytes of a spool segment, or a Kafka offset
    payload: bytes
    fault: str | None = None  # why the source itself could not read it; None: payload is whole


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records of one source.  May be empty of records and still move the offset."""

    source_id: str
    expected_offset: int | None  # where the ledger must stand for this batch; None: never seen
    next_offset: int  # where it stands afterwards
    records: Sequence[Record]
