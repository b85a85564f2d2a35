"""The replicas' own journals of what they served, as ``contracts.replica_usage`` has them."""

import logging
from collections.abc import Iterator
from pathlib import Path

from billing.audit import Witness
from billing.segment_file import records_of, segment_names
from contracts.errors import ContractError
from contracts.replica_usage import ReplicaUsage, decode_replica_usage

logger = logging.getLogger(__name__)


def read_journals(folder: Path) -> list[Witness]:
    """A sub-folder a replica, named like it.  Raises OSError."""
    if not folder.is_dir():
        return []
    journals = sorted(path for path in folder.iterdir() if path.is_dir())
    return [Witness(path.name, list(_records(path))) for path in journals]


def _records(journal: Path) -> Iterator[ReplicaUsage]:
    for name in segment_names(journal):
        for record in records_of(journal / name):
            try:
                if record.fault is None:
                    yield decode_replica_usage(record.payload)
                    continue
                error = record.fault
            except ContractError as exc:
                error = str(exc)
            logger.warning("journal line unreadable", extra={"segment": name, "error": error})
