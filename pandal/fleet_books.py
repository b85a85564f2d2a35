"""Which ledger a command means: the local fleet's, or another by its URL."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from billing.errors import (
    BillingError,
    LedgerMissing,
    PriceBookInvalid,
    RequestInvalid,
    TermsInvalid,
)
from contracts.errors import ContractError
from pandal.datadir import DataDir
from pandal.errors import BadOption, NotFound, PandalError


@dataclass(frozen=True, slots=True)
class FleetBooks:
    """A ledger, and beside it the directory that has what was agreed with tenants."""

    data_dir: DataDir
    other_ledger_url: str | None = None  # None: the directory's own

    @property
    def ledger_url(self) -> str:
        url = self.other_ledger_url
        return self.data_dir.ledger_url if url is None else url

    def existing(self) -> str:
        """The URL, of a ledger of this version.

        Opening one to write would make it where no fleet has run, or bring it up to date under a
        billing that then could post to it no more: that is for who runs billing to decide.

        Raises LedgerMissing, LedgerUnavailable.
        """
        from billing.ledger_database import reading  # SQLAlchemy, which not all commands need

        with reading(self.ledger_url):
            return self.ledger_url


@contextmanager
def translated(books: FleetBooks) -> Iterator[None]:
    """Billing's errors as a command's."""
    try:
        yield
    except LedgerMissing as exc:
        if books.other_ledger_url is not None or books.data_dir.ledger.is_file():
            raise NotFound(f"no ledger of this version there: {exc}") from exc
        raise NotFound(f"no ledger in {books.data_dir.root}: no fleet has run there yet") from exc
    except (ContractError, RequestInvalid, PriceBookInvalid, TermsInvalid) as exc:
        raise BadOption(str(exc)) from exc
    except BillingError as exc:
        raise PandalError(str(exc)) from exc
