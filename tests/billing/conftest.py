"""A fresh ledger for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from billing.ledger import Ledger
from tests.billing.usage_events import BOOK


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """Knows the prices of ``usage_events.BOOK``."""
    ledger = Ledger(ledger_url)
    ledger.record_prices(BOOK)
    yield ledger
    ledger.close()
