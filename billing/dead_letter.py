"""Records that can never become ledger entries: kept, with place and reason, out of the way."""

from dataclasses import dataclass
from enum import StrEnum


class DeadReason(StrEnum):
    CORRUPT = "corrupt"  # the source's own check failed
    UNDECODABLE = "undecodable"  # not a usage event this version understands
    IMPLAUSIBLE = "implausible"  # a usage event that no gateway of ours can have written
    CONTRADICTORY = "contradictory"  # its event id is in the ledger with other content


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Unique by source and offset.  ``detail`` may quote the record: it is stored, never logged."""

    offset: int
    reason: DeadReason
    detail: str
    payload: bytes
