"""What was agreed with tenants beside prices: their time zone, and what to be alerted of.

A YAML document; a tenant it does not name is billed in UTC and has no alerts::

    webhook: {url: "https://ops.example/alerts", secret_file: /run/secrets/alerts}
    tenants:
      acme:
        time_zone: Europe/Paris
        budgets:
          - {name: month, period: month, usd: "500", thresholds_percent: [50, 80, 100]}
          - {name: ci, period: day, usd: "20", key_id: key-1}
"""

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec
import yaml

from billing.errors import RequestInvalid, TermsInvalid
from billing.money import pico_usd_from_usd
from billing.periods import time_zone
from contracts.errors import ContractError
from contracts.names import tenant_id

_MAX_USD: Final = Decimal(10**9)
_Percent = Annotated[int, msgspec.Meta(ge=1, le=1_000)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]


class BudgetPeriod(StrEnum):
    """Calendar days and months in UTC, as the quota's budgets are."""

    DAY = "day"
    MONTH = "month"


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says when to tell somebody.  What must not be spent is a rule of the tenant's policy."""

    name: _Name  # of the tenant's, once
    period: BudgetPeriod
    usd: str  # exact, so text
    key_id: str | None = None  # None: all of the tenant's
    thresholds_percent: tuple[_Percent, ...] = (80, 100)

    @property
    def pico_usd(self) -> int:
        return pico_usd_from_usd(Decimal(self.usd))


class TenantTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    time_zone: str = "UTC"  # decides where its months begin
    budgets: tuple[Budget, ...] = ()


class Webhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str
    secret_file: str  # signs every call; 16 bytes at least


class BillingTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    webhook: Webhook | None = None
    tenants: Mapping[str, TenantTerms] = {}

    def of(self, tenant: str) -> TenantTerms:
        return self.tenants.get(tenant, _USUAL)


_USUAL: Final = TenantTerms()
NO_TERMS: Final = BillingTerms()


def read_terms(path: Path | None) -> BillingTerms:
    """None, or a file that is not there: nothing was agreed.  Raises TermsInvalid."""
    found = None if path is None else terms_at(path)
    return NO_TERMS if found is None else found


def terms_at(path: Path) -> BillingTerms | None:
    """None: there is no such file.  Raises TermsInvalid."""
    try:
        return parse_terms(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise TermsInvalid(f"terms {path}: {exc}") from exc


def parse_terms(text: str) -> BillingTerms:
    """Raises TermsInvalid, naming the path of the fault."""
    try:
        document = yaml.safe_load(text)
        terms = msgspec.convert({} if document is None else document, BillingTerms)
    except (yaml.YAMLError, msgspec.ValidationError) as exc:
        raise TermsInvalid(f"terms: {exc}") from exc
    for name, of_tenant in terms.tenants.items():
        _check(name, of_tenant)
    return terms


def _check(name: str, terms: TenantTerms) -> None:
    where = f"terms: $.tenants.{name}"
    try:
        tenant_id(name)
        time_zone(terms.time_zone)
    except (ContractError, RequestInvalid) as exc:
        raise TermsInvalid(f"{where}: {exc}") from exc
    seen: set[str] = set()
    for budget in terms.budgets:
        if budget.name in seen:
            raise TermsInvalid(f"{where}: budget {budget.name!r} stands twice")
        seen.add(budget.name)
        _check_amount(budget, f"{where}: budget {budget.name!r}")


def _check_amount(budget: Budget, where: str) -> None:
    try:
        usd = Decimal(budget.usd)
        is_sane = 0 < usd <= _MAX_USD and pico_usd_from_usd(usd) > 0
    except (ArithmeticError, ValueError):
        is_sane = False
    if not is_sane:
        raise TermsInvalid(f'{where}: expected usd as text such as "500.00", got {budget.usd!r}')
