"""The commands that keep the books: ``pandal audit`` and what else an accountant asks for."""

from pathlib import Path
from typing import Annotated

import typer

from pandal.datadir import data_dir_at
from pandal.installation import require_extras
from pandal.screen import SteadyConsole, say
from pandal.settings import CommandSettings

DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="State of the local fleet.", show_default="~/.local/share/pandal"
    ),
]
PriceBookOption = Annotated[
    Path | None,
    typer.Option("--price-book", help="TOML or YAML.", show_default="the packaged one"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def audit(
    grace_s: Annotated[
        float, typer.Option(min=0, help="How old an unbilled record of a replica may be.")
    ] = 3_600.0,
    patience_s: Annotated[
        float, typer.Option(min=0, help="For what is on its way while the fleet runs.")
    ] = 5.0,
    hours: Annotated[
        float | None,
        typer.Option(min=0, help="Check events of so many hours.", show_default="all"),
    ] = None,
    recover: Annotated[
        bool, typer.Option(help="Post what a replica served and no gateway lived to bill.")
    ] = True,
    price_book: PriceBookOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Whether engine, quota, events and ledger agree, to the token; status 1 if they do not."""
    require_extras(("billing",))
    from pandal.audit import AuditRequest, report_json, run_audit, show_report

    default = CommandSettings().default_data_dir()
    report = run_audit(
        AuditRequest(
            data_dir=data_dir_at(default if data_dir is None else data_dir),
            price_book=price_book,
            grace_s=grace_s,
            patience_s=patience_s,
            hours=hours,
            recovers=recover,
        )
    )
    if as_json:
        say(report_json(report).decode())
    else:
        show_report(SteadyConsole(), report)
    if report.findings:
        raise typer.Exit(1)
