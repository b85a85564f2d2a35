"""What the user sees: progress, the demo's answer, what happens to the fleet.

On a terminal that can, bars and colours; anywhere else plain lines without control codes, so
that a log file stays readable.
"""

import os
import re
import select
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol, TextIO

from rich.console import Console, JustifyMethod
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
)
from rich.table import Column
from rich.text import Text

from contracts.replica_api import Phase

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # but the tab and the end of a line
_PLAIN_STEP_RATIO = 0.25  # a plain log gets a line per quarter
_BAR_WIDTH = 16  # of 80 columns more than a third are left for the message

MonotonicSeconds = Callable[[], float]


class SteadyConsole(Console):
    """A reader that has gone (``pandal up | head``) silences it, and must not end the fleet."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        silence(self.file)


def say(text: str, stream: TextIO | None = None) -> None:
    """On standard output if no ``stream`` is named.  A reader that has gone has what it wanted.

    Names that somebody else wrote do not move a terminal's cursor.
    """
    out = sys.stdout if stream is None else stream
    try:
        _write_whole(out, _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text) + "\n")
    except BrokenPipeError:
        silence(out)


def _write_whole(out: TextIO, text: str) -> None:
    """Python's text layer drops the rest where an unbuffered stream takes a part.

    A full pipe's does so when a signal comes (PYTHONUNBUFFERED=1, as in images, and uvloop's
    child watcher).  Raises OSError.
    """
    buffer = getattr(out, "buffer", None)
    if buffer is None:  # a stream of text alone
        out.write(text)
        out.flush()
        return
    out.flush()
    raw = getattr(buffer, "raw", buffer)  # where nothing waits, a buffer would raise
    rest = memoryview(text.encode(out.encoding, "replace" if out.errors is None else out.errors))
    while rest:
        num_taken = raw.write(rest)
        if num_taken is None:  # it does not block, and its reader is slow
            select.select([], [out], [])
        else:
            rest = rest[num_taken:]


def one_line(text: str) -> str:
    """As somebody else wrote it, in a line of ours: it begins none of its own."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def as_written(text: str, style: str = "") -> Text:
    """As somebody else wrote it, in a table or a line of Rich's: nor is it marked up."""
    return Text(one_line(text), style)


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
    def progress(self, monotonic_s: MonotonicSeconds = time.monotonic) -> Iterator[ProgressView]:
        """What is shown on a terminal goes when it ends; a line for each that is ready stays."""
        if self._out.is_terminal and not self._out.is_dumb_terminal:
            with _bars(self._out, monotonic_s) as bars:
                yield BarProgress(self, bars)
        else:
            yield PlainProgress(self, monotonic_s)

    def ready(self, name: str, after_s: float) -> None:
        self.line(f"{name}  ready  {after_s:.0f} s")

    def _end_open_line(self) -> None:
        if self._is_mid_line:
            _print(self._out, Text(""))
            self._is_mid_line = False


class BarProgress:
    def __init__(self, screen: Screen, bars: Progress) -> None:
        self._screen = screen
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def show(self, name: str, phase: Phase, ratio: float, detail: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task("", total=1.0, name=name, detail="")
        task_id = self._tasks[name]
        self._bars.update(task_id, description=phase, completed=ratio, detail=detail)
        if phase is Phase.READY:
            task = next(task for task in self._bars.tasks if task.id == task_id)
            self._bars.update(task_id, visible=False)
            self._screen.ready(name, _elapsed_s(task))


class PlainProgress:
    def __init__(self, screen: Screen, monotonic_s: MonotonicSeconds) -> None:
        self._screen = screen
        self._monotonic_s = monotonic_s
        self._begun_monotonic_s: dict[str, float] = {}
        self._shown: dict[str, tuple[Phase, int]] = {}

    def show(self, name: str, phase: Phase, ratio: float, detail: str) -> None:
        now_s = self._monotonic_s()
        begun_s = self._begun_monotonic_s.setdefault(name, now_s)
        step = (phase, int(ratio / _PLAIN_STEP_RATIO))
        if self._shown.get(name) == step:
            return
        self._shown[name] = step
        if phase is Phase.READY:
            self._screen.ready(name, now_s - begun_s)
            return
        note = f" ({detail})" if detail else ""
        self._screen.line(f"{name}: {phase} {ratio:.0%}{note}")


class _Clock(ProgressColumn):
    """Rich's own stands still once a phase is complete, and the next may take minutes."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        return Text(f"{_elapsed_s(task):.0f} s", "progress.elapsed")


def _elapsed_s(task: Task) -> float:
    return 0.0 if task.elapsed is None else task.elapsed


def _print(console: Console, text: Text, end: str = "\n") -> None:
    """A closed terminal or a full disk behind the output is no reason to leave a fleet running."""
    with suppress(OSError):
        console.print(text, end=end, soft_wrap=True)


def _bars(console: Console, monotonic_s: MonotonicSeconds) -> Progress:
    """Where the terminal is narrow the message is cut, and never the name of whose it is."""
    return Progress(
        TextColumn("{task.fields[name]}", table_column=_whole(9)),
        TextColumn("{task.description}", table_column=_whole(11)),
        BarColumn(_BAR_WIDTH),
        TaskProgressColumn(table_column=_whole(4)),
        _Clock(table_column=_whole(5, justify="right")),
        TextColumn(
            "{task.fields[detail]}",
            style="dim",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
        console=console,
        get_time=monotonic_s,
        transient=True,
        expand=True,
    )


def _whole(min_width: int, justify: JustifyMethod = "left") -> Column:
    return Column(no_wrap=True, min_width=min_width, justify=justify)
