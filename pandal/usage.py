"""``pandal usage``: what was used and charged, by day, model or key, with a bar for each."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from billing.money import plain, sum_usd
from billing.usage_report import UsageQuery, UsageRow, usage_rows
from contracts.names import tenant_id
from pandal.books import check_is_known
from pandal.fleet_books import FleetBooks, translated
from pandal.screen import as_written

_BAR_CELLS: Final = 24
_FEWEST_BAR_CELLS: Final = 6  # as wide as the heading
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def read_usage(books: FleetBooks, query: UsageQuery) -> list[UsageRow]:
    """Raises BadOption, NotFound, PandalError."""
    with translated(books):
        if query.tenant_id is not None:
            tenant_id(query.tenant_id)
        rows = usage_rows(books.ledger_url, query)
        if query.tenant_id is not None and not rows:
            check_is_known(books, query.tenant_id)
    return rows


def show_usage(console: Console, query: UsageQuery, rows: Sequence[UsageRow]) -> None:
    whose = "all tenants" if query.tenant_id is None else query.tenant_id
    console.print(as_written(f"{whose}, {query.first} to {query.last} (UTC)", "bold"))
    if not rows:
        console.print(Text("nothing was used"))
        return
    console.print(_table(query, rows, _num_bar_cells(console, query, rows)))
    requests, tokens = sum(r.num_requests for r in rows), sum(r.total_tokens for r in rows)
    total_usd = sum_usd(row.usd for row in rows)
    console.print(Text(f"{requests:,} requests, {tokens:,} tokens, {plain(total_usd)} USD"))
    num_unpriced = sum(row.num_unpriced_requests for row in rows)
    if num_unpriced:
        what = "1 request is" if num_unpriced == 1 else f"{num_unpriced:,} requests are"
        console.print(Text(f"{what} not priced yet ('pandal doctor' says why)", "yellow"))


def _num_bar_cells(console: Console, query: UsageQuery, rows: Sequence[UsageRow]) -> int:
    """What the other columns leave of the line: before a name is cut, the bar is shorter."""
    taken = console.measure(_table(query, rows, _FEWEST_BAR_CELLS)).maximum
    return min(_BAR_CELLS, _FEWEST_BAR_CELLS + console.width - taken)


def _table(query: UsageQuery, rows: Sequence[UsageRow], num_bar_cells: int) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(query.by.value, overflow="fold")
    for heading in ("requests", "tokens", "USD"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("tokens", no_wrap=True)
    most = max(row.total_tokens for row in rows)
    for row in rows:
        counts = (f"{row.num_requests:,}", f"{row.total_tokens:,}")
        usd = _usd(row.usd, row.num_unpriced_requests)
        shown = bar(row.total_tokens, most, num_bar_cells)
        table.add_row(as_written(row.group), *counts, usd, shown)
    return table


def _usd(usd: Decimal, num_unpriced: int) -> Text:
    """A bare zero would say that it was free."""
    if not num_unpriced:
        return Text(plain(usd))
    told = f"{num_unpriced:,} not priced"
    return Text(f"{plain(usd)} + {told}" if usd else told, "yellow")


def bar(value: int, most: int, num_cells: int) -> str:
    """In eighths of a cell; what is not nothing shows."""
    eighths = 0 if most == 0 else -(-value * num_cells * 8 // most)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")
