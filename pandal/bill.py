"""``pandal bill``: a tenant's month, out of the ledger; the fleet may run or not."""

from datetime import datetime
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from billing.money import plain
from billing.periods import month_of
from billing.statement import Statement, statement
from contracts.names import tenant_id
from pandal.books import check_is_known, time_zone_of
from pandal.fleet_books import FleetBooks, translated
from pandal.screen import as_written

HOW_TO_PRICE: Final = (
    "add the model to the price book (BILLING_PRICE_BOOK=FILE; 'pandal prices export' prints one "
    "to begin with): what waits is priced then"
)


def read_statement(books: FleetBooks, tenant: str, month: str | None, now: datetime) -> Statement:
    """``month``: of the tenant's own zone; None: the one that is there ``now``.

    Raises BadOption for a month or name that cannot be, NotFound for a tenant nobody knows.
    """
    with translated(books):
        name = tenant_id(tenant)
        zone = time_zone_of(books, name)
        month = month_of(now, zone) if month is None else month
        found = statement(books.ledger_url, name, month, zone)
        if found.num_requests + found.num_requests_without_usage == 0:
            check_is_known(books, name)
    return found


def show_statement(console: Console, found: Statement) -> None:
    requests = "1 request" if found.num_requests == 1 else f"{found.num_requests} requests"
    title = f"{found.tenant_id}, {found.month} ({found.time_zone}): {requests}"
    console.print(as_written(title, "bold"))
    if found.lines:
        console.print(_table(found))
    for each in found.adjustments:
        console.print(as_written(f"{each.kind:<10}  {plain(each.usd)} USD  {each.reason}"))
    if found.lines or found.adjustments:
        console.print(Text(f"total       {plain(found.total_usd)} USD"))
        console.print(Text(f"amount due  {plain(found.amount_due_usd)} USD"))
    num_idle = found.num_requests_without_usage
    if num_idle:
        console.print(Text(f"refused or failed before any token, not charged: {num_idle}"))
    if found.num_unpriced_requests:
        fact = f"requests not priced yet: {found.num_unpriced_requests}"
        console.print(as_written(f"{fact} ({', '.join(found.unpriced_models)})", "yellow"))
        console.print(Text(HOW_TO_PRICE))


def _table(found: Statement) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("model and token class", overflow="fold")
    for heading in ("tokens", "USD per 1M", "USD"):
        table.add_column(heading, justify="right", no_wrap=True)
    shown: str | None = None
    for line in found.lines:
        if line.model != shown:
            shown = line.model
            table.add_row(as_written(line.model, "bold"))
        table.add_row(
            f"  {line.token_class.value}",
            f"{line.tokens:,}",
            plain(line.usd_per_million_tokens),
            plain(line.usd),
        )
    return table
