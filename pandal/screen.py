"""What the user sees: progress, the demo's answer, what happens to the fleet.

On a terminal that can, bars and colours; anywhere else plain lines without control codes, so
that a log file stays readable.
"""

import os
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol, TextIO

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from contracts.replica_api import Phase

_PLAIN_STEP_RATIO = 0.25  # a plain log gets a line per quarter


class SteadyConsole(Console):
    """A reader that has gone (``pandal up | head``) silences it, and must not end the fleet."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        silence(self.file)


def say(text: str, stream: TextIO | None = None) -> None:
    """On standard output if no ``stream`` is named.  A reader that has gone has what it wanted."""
    try:
        typer.echo(text, stream)
    except BrokenPipeError:
        silence(sys.stdout if stream is None else stream)


def silence(stream: IO[str]) -> None:
    """Its reader has gone.  Python would try once more at its exit, and complain."""
    with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


class ProgressView(Protocol):
    """One line per replica that is on its way."""

    def show(self, name: str, phase: Phase, ratio: float, detail: str) -> None: ...


class Screen:
    def __init__(self, out: Console, err: Console) -> None:
        self._out = out
        self._err = err
        self._is_mid_line = False

    def line(self, text: str, style: str = "") -> None:
        """One whole line, never wrapped or marked up: it may be there to be pasted."""
        self._end_open_line()
        _print(self._out, Text(text, style))

    def table(self, title: str, rows: Mapping[str, str]) -> None:
        self.line("")
        self.line(title, "bold")
        width = max(map(len, rows), default=0)
        for name, value in rows.items():
            self.line(f"  {name:<{width}}  {value}")

    def problem(self, text: str) -> None:
        """One line on standard error."""
        self._end_open_line()
        _print(self._err, Text(text, "red"))

    def stream(self, text: str) -> None:
        """Adds to the current line.  Control characters in a model's answer stay out."""
        printable = "".join(c for c in text if c == "\n" or unicodedata.category(c) != "Cc")
        if printable:
            _print(self._out, Text(printable, "cyan"), end="")
            self._is_mid_line = not printable.endswith("\n")

    @contextmanager
    def progress(self) -> Iterator[ProgressView]:
        if self._out.is_terminal and not self._out.is_dumb_terminal:
            with _bars(self._out) as bars:
                yield BarProgress(bars)
        else:
            yield PlainProgress(self)

    def _end_open_line(self) -> None:
        if self._is_mid_line:
            _print(self._out, Text(""))
            self._is_mid_line = False


class BarProgress:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def show(self, name: str, phase: Phase, ratio: float, detail: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task("", total=1.0, name=name, detail="")
        self._bars.update(self._tasks[name], description=phase, completed=ratio, detail=detail)


class PlainProgress:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._shown: dict[str, tuple[Phase, int]] = {}

    def show(self, name: str, phase: Phase, ratio: float, detail: str) -> None:
        step = (phase, int(ratio / _PLAIN_STEP_RATIO))
        if self._shown.get(name) != step:
            self._shown[name] = step
            note = f" ({detail})" if detail else ""
            self._screen.line(f"{name}: {phase} {ratio:.0%}{note}")


def _print(console: Console, text: Text, end: str = "\n") -> None:
    """A closed terminal or a full disk behind the output is no reason to leave a fleet running."""
    with suppress(OSError):
        console.print(text, end=end, soft_wrap=True)


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.fields[name]}"),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", style="dim", markup=False),
        console=console,
    )
