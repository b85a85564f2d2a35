"""Options that many commands share: where the local fleet's state is, and for whom the output."""

from pathlib import Path
from typing import Annotated

import typer

from pandal.datadir import DataDir, data_dir_at
from pandal.settings import told_settings

DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="State of the local fleet.", show_default="~/.local/share/pandal"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def directory(option: Path | None) -> DataDir:
    """Raises BadOption."""
    return data_dir_at(told_settings().default_data_dir() if option is None else option)
