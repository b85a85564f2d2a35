"""The price book in force: read from its file again whenever that changes."""

import logging
from collections.abc import Callable
from pathlib import Path

from billing.errors import PriceBookInvalid
from billing.ledger import Ledger
from billing.price_book_file import read_price_book
from billing.pricing import PriceBook

logger = logging.getLogger(__name__)

_Version = tuple[int, int, int]


class CurrentPrices:
    """Adopting a book records its prices and rates the events that were waiting for them.

    Without a usable book nothing starts: constructing raises PriceBookInvalid, LedgerUnavailable.
    ``note_progress`` is called in the thread that adopts, after each transaction.
    """

    def __init__(
        self, path: Path | None, ledger: Ledger, note_progress: Callable[[], None]
    ) -> None:
        self._path = path
        self._ledger = ledger
        self._note_progress = note_progress
        self._version = self._current_version()
        self._price_book = self._adopt()

    def refresh(self) -> PriceBook:
        """The newest usable book; a broken new one is reported once and the old one stays."""
        version = self._current_version()
        if version != self._version:
            try:
                self._price_book = self._adopt()
            except PriceBookInvalid as exc:
                logger.warning("new price book refused", extra={"error": str(exc)})
            self._version = version
        return self._price_book

    def _adopt(self) -> PriceBook:
        price_book = read_price_book(self._path)
        self._ledger.record_prices(price_book)
        num_rated = self._ledger.post_unpriced(price_book, self._note_progress)
        logger.info("price book adopted", extra={"num_posted": num_rated})
        return price_book

    def _current_version(self) -> _Version | None:
        """Changes when the file does; None: the packaged book, or no file at all."""
        if self._path is None:
            return None
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns
