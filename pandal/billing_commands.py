"""The commands that keep the books: ``pandal audit`` and what else an accountant asks for."""

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import typer

from pandal.errors import BadOption
from pandal.installation import require_extras
from pandal.options import DataDirOption, JsonOption, directory
from pandal.screen import SteadyConsole, say
from pandal.settings import told_settings

if TYPE_CHECKING:
    from pandal.fleet_books import FleetBooks  # which imports billing, an extra

PriceBookOption = Annotated[
    Path | None,
    typer.Option(
        "--price-book",
        help="What the fleet bills by: TOML or YAML.",
        show_default="BILLING_PRICE_BOOK, or the packaged one",
    ),
]
LedgerUrlOption = Annotated[
    str | None,
    typer.Option(
        "--ledger-url",
        help="Another ledger, such as postgresql://billing@db/ledger.",
        show_default="PANDAL_LEDGER_URL, or the data directory's",
    ),
]
TenantArgument = Annotated[str, typer.Argument()]
MONTH_HELP: Final = "YYYY-MM, in the tenant's time zone."
MonthOption = Annotated[str, typer.Option("--month", help=MONTH_HELP)]

billing_app = typer.Typer(no_args_is_help=True, help="Invoices, adjustments, dead letters.")
prices_app = typer.Typer(no_args_is_help=True, help="Price books.")

_LONGEST_HOURS: Final = 1_000_000.0  # a century: dates go as far back, and as far ahead
_LONGEST_S: Final = _LONGEST_HOURS * 3_600.0


def _number(value: float | None) -> float | None:
    if value is not None and math.isnan(value):  # which is within all bounds
        raise typer.BadParameter("expected a number, got nan")
    return value


def _length(of: str, longest: float, show_default: bool | str = True) -> Any:  # typer's OptionInfo
    return typer.Option(min=0, max=longest, callback=_number, help=of, show_default=show_default)


def audit(
    grace_s: Annotated[
        float, _length("How old an unbilled record of a replica may be.", _LONGEST_S)
    ] = 3_600.0,
    patience_s: Annotated[
        float, _length("For what is on its way while the fleet runs.", _LONGEST_S)
    ] = 5.0,
    hours: Annotated[
        float | None,
        _length("Check events of so many hours.", _LONGEST_HOURS, show_default="all"),
    ] = None,
    recover: Annotated[
        bool, typer.Option(help="Mend what is certain: see docs/billing.md.")
    ] = False,
    price_book: PriceBookOption = None,
    ledger_url: LedgerUrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Whether engine, quota, events and ledger agree, to the token.

    Status 1: they do not.  3: not all that it compares could be read or asked.  What its columns
    and differences mean is in docs/billing.md.
    """
    require_extras(("billing",))
    from billing.reconciliation import AuditRules
    from pandal.audit import report_json, run_audit, show_report, sources_of, status_of

    books = books_at(data_dir, ledger_url)
    rules = AuditRules(
        grace=timedelta(seconds=grace_s),
        patience_s=patience_s,
        span=None if hours is None else timedelta(hours=hours),
        is_counted=hours is None,
        recovers=recover,
    )
    sources = sources_of(books, _price_book(price_book), told_settings())
    report = run_audit(books, sources, rules)
    not_compared = report.not_compared(has_quota_store=sources.quota_url is not None)
    if as_json:
        say(report_json(report, not_compared).decode())
    else:
        show_report(SteadyConsole(), report, not_compared)
    raise typer.Exit(status_of(report, not_compared))


def usage(
    tenant: Annotated[str | None, typer.Argument(show_default="all")] = None,
    by: Annotated[
        Literal["day", "model", "key", "tenant"], typer.Option(help="What a line is of.")
    ] = "day",
    first: Annotated[
        datetime | None,
        typer.Option("--from", formats=["%Y-%m-%d"], help="UTC.", show_default="a month ago"),
    ] = None,
    last: Annotated[
        datetime | None,
        typer.Option("--to", formats=["%Y-%m-%d"], help="UTC, included.", show_default="today"),
    ] = None,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")] = False,
    ledger_url: LedgerUrlOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """What was used and charged, by day, model or key, from the ledger.

    In days of UTC, of all requests, also those that used nothing, and without credits and
    corrections: those are in 'pandal bill', which goes by months of the tenant's time zone.
    """
    require_extras(("billing",))
    from billing.usage_report import Grouping, UsageQuery, usage_csv, usage_json
    from pandal.usage import read_usage, show_usage

    today = datetime.now(UTC).date()
    until = today if last is None else last.date()
    since = until - timedelta(days=30) if first is None else first.date()
    if as_json and as_csv:
        raise BadOption("expected --json or --csv, got both")
    if since > until:
        raise BadOption(f"expected --from before --to, got {since} and {until}")
    query = UsageQuery(Grouping(by), since, until, tenant)
    rows = read_usage(books_at(data_dir, ledger_url), query)
    if as_json:
        say(usage_json(query, rows).decode())
    elif as_csv:
        say(usage_csv(query, rows).rstrip("\n"))
    else:
        show_usage(SteadyConsole(), query, rows)


@billing_app.command("close")
def close(
    tenant: TenantArgument,
    month: MonthOption,
    grace_hours: Annotated[
        float, _length("After the month's end, for what comes late.", _LONGEST_HOURS)
    ] = 2.0,
    ledger_url: LedgerUrlOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Close a tenant's month: its invoice, which nothing changes any more."""
    require_extras(("billing",))
    from pandal.books import close_month

    invoice = close_month(books_at(data_dir, ledger_url), tenant, month, grace_hours=grace_hours)
    say(msgspec.json.format(invoice.to_json(), indent=2).decode())


@billing_app.command("invoice")
def invoice(
    tenant: TenantArgument,
    month: MonthOption,
    ledger_url: LedgerUrlOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Print a closed month's invoice as it was issued."""
    require_extras(("billing",))
    from pandal.books import issued_invoice

    document = issued_invoice(books_at(data_dir, ledger_url), tenant, month)
    say(msgspec.json.format(document, indent=2).decode())


@billing_app.command("adjust")
def adjust_(
    tenant: TenantArgument,
    usd: Annotated[str, typer.Option(help="Below zero: in the tenant's favour.")],
    reason: Annotated[str, typer.Option(help="A line of the invoice.")],
    name: Annotated[str, typer.Option("--id", help="Makes it count once.")],
    request: Annotated[
        str | None, typer.Option(help="The request id that it corrects.", show_default="none")
    ] = None,
    ledger_url: LedgerUrlOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Post a correction or a credit beside what was used."""
    require_extras(("billing",))
    from pandal.books import adjust

    is_new = adjust(
        books_at(data_dir, ledger_url), tenant, usd=usd, reason=reason, name=name, request=request
    )
    say("posted" if is_new else "had been posted before")


@billing_app.command("replay")
def replay_(
    price_book: PriceBookOption = None,
    ledger_url: LedgerUrlOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Post the dead letters that this version understands."""
    require_extras(("billing",))
    from pandal.books import replay_dead_letters

    result = replay_dead_letters(books_at(data_dir, ledger_url), _price_book(price_book))
    say(
        f"{result.num_posted} posted, {result.num_repeated} were in the ledger, "
        f"{result.num_left} left"
    )


@prices_app.command("export")
def export(
    price_book: Annotated[Path | None, typer.Argument(show_default="the packaged one")] = None,
) -> None:
    """Check a price book and print it as YAML, which billing reads as well."""
    require_extras(("billing",))
    from billing.errors import PriceBookInvalid
    from billing.price_book_file import read_price_book, yaml_price_book

    try:
        say(yaml_price_book(read_price_book(price_book)).rstrip("\n"))
    except PriceBookInvalid as exc:
        raise BadOption(str(exc)) from exc


@prices_app.command("dry-run")
def dry_run(
    price_book: Annotated[Path, typer.Argument(help="TOML or YAML.")],
    month: Annotated[str, typer.Option(help="YYYY-MM, UTC.")],
    ledger_url: LedgerUrlOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """What a month would have cost under another price book.  Changes nothing."""
    require_extras(("billing",))
    from billing.money import plain, usd_from_pico_usd
    from pandal.books import compare_books

    for tenant, found in compare_books(books_at(data_dir, ledger_url), price_book, month).items():
        was, would_be = (
            plain(usd_from_pico_usd(pico_usd))
            for pico_usd in (found.charged_pico_usd, found.would_be_pico_usd)
        )
        unpriced = f", {found.num_unpriced} requests unpriced" if found.num_unpriced else ""
        say(f"{tenant}: {was} USD, would be {would_be} USD{unpriced}")


def books_at(data_dir: Path | None, ledger_url: str | None) -> "FleetBooks":
    from pandal.fleet_books import FleetBooks

    settings = told_settings()
    if ledger_url is None and settings.ledger_url is not None:
        ledger_url = settings.ledger_url.get_secret_value()
    return FleetBooks(directory(data_dir), ledger_url)


def _price_book(option: Path | None) -> Path | None:
    return told_settings().price_book if option is None else option
