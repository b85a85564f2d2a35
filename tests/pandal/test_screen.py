import fcntl
import io
import os
import signal
import struct
import subprocess
import sys
import termios

import pytest
from rich.console import Console
from rich.text import Text

from contracts.replica_api import Phase
from pandal.screen import Screen, SteadyConsole, one_line, say
from tests.support.waiting import eventually


class Streams:
    def __init__(self, *, is_terminal: bool, width: int = 40) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        self.screen = Screen(
            Console(file=self.out, force_terminal=is_terminal, width=width),
            Console(file=self.err, force_terminal=is_terminal, width=width),
        )


@pytest.fixture
def plain() -> Streams:
    return Streams(is_terminal=False)


def test_what_may_be_pasted_is_neither_wrapped_nor_marked_up(plain: Streams) -> None:
    text = "curl [bold]x[/bold] " + "k" * 200
    plain.screen.line(text)
    assert plain.out.getvalue() == text + "\n"


def test_control_characters_of_a_model_stay_off_the_terminal() -> None:
    streams = Streams(is_terminal=True)
    streams.screen.stream("a\x1b]0;title\x07b\x9b2J\r\nc")
    assert "\x1b]" not in streams.out.getvalue()
    assert "\x9b" not in streams.out.getvalue()
    assert "\x07" not in streams.out.getvalue()


def test_a_problem_does_not_cut_into_a_streamed_line(plain: Streams) -> None:
    plain.screen.stream("half a sen")
    plain.screen.problem("gateway died")
    plain.screen.line("next")
    assert plain.out.getvalue() == "half a sen\nnext\n"
    assert plain.err.getvalue() == "gateway died\n"


def test_a_closed_terminal_is_no_error() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    screen = Screen(SteadyConsole(file=Closed()), SteadyConsole(file=Closed()))
    screen.stream("half a sen")
    screen.line("next")
    screen.problem("gateway died")


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def shown(file: io.StringIO) -> str:
    """Without the colours."""
    return Text.from_ansi(file.getvalue().replace("\r", "\n")).plain


def test_progress_without_a_terminal_is_a_few_plain_lines(plain: Streams) -> None:
    clock = Clock()
    with plain.screen.progress(clock) as view:
        for percent in range(101):
            view.show("replica-0", Phase.LOADING, percent / 100, "")
        clock.now_s += 8
        view.show("replica-0", Phase.READY, 1.0, "compiled kernels, 2 threads: avx2")
    lines = plain.out.getvalue().splitlines()
    assert lines[0] == "replica-0: loading 0%"
    assert lines[-1] == "replica-0  ready  8 s"
    assert len(lines) == 6
    assert "\x1b" not in plain.out.getvalue()


def test_progress_on_a_terminal_is_a_bar() -> None:
    streams = Streams(is_terminal=True, width=80)
    with streams.screen.progress() as view:
        view.show("replica-0", Phase.LOADING, 0.5, "SmolLM2 [1/2]")
    assert "━" in streams.out.getvalue()
    assert "50%" in streams.out.getvalue()


def test_a_long_message_is_cut_and_the_name_is_not() -> None:
    streams, clock = Streams(is_terminal=True, width=60), Clock()
    with streams.screen.progress(clock) as view:
        for name in ("replica-0", "replica-1"):
            view.show(name, Phase.LOADING, 0.5, "keys and values as float32, " * 5)
    lines = shown(streams.out).splitlines()
    for name in ("replica-0", "replica-1"):
        assert any(line.startswith(f"{name} loading") and "…" in line for line in lines)


def test_the_clock_goes_on_after_the_download_is_whole() -> None:
    streams, clock = Streams(is_terminal=True, width=80), Clock()
    with streams.screen.progress(clock) as view:
        view.show("replica-0", Phase.DOWNLOADING, 1.0, "")
        clock.now_s += 95
        view.show("replica-0", Phase.LOADING, 0.94, "compiling")
    assert "95 s" in shown(streams.out)


def test_what_is_ready_leaves_one_line() -> None:
    streams, clock = Streams(is_terminal=True, width=80), Clock()
    with streams.screen.progress(clock) as view:
        view.show("replica-0", Phase.LOADING, 0.5, "")
        clock.now_s += 8
        view.show("replica-0", Phase.READY, 1.0, "compiled kernels, 2 threads: avx2")
    assert "replica-0  ready  8 s\n" in shown(streams.out)
    assert "avx2" not in shown(streams.out)


def test_a_name_moves_no_cursor_and_begins_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\x1b[2K\rb\tc\nd")
    assert capsys.readouterr().out == "a\ufffd[2K\ufffdb\tc\nd\n"
    assert one_line("noisy\nversion 9") == "noisy\ufffdversion 9"


NUM_SIGNS = 300_000  # more than a pipe holds
UNBUFFERED = f"""
import signal
from pandal.screen import say
signal.signal(signal.SIGUSR1, lambda *_: None)
say("x" * {NUM_SIGNS})
"""


def test_a_signal_in_the_middle_of_a_long_text_cuts_nothing_off() -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = (sys.executable, "-c", UNBUFFERED)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
        pipe = writer.stdout
        assert pipe is not None
        full = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
        eventually(lambda: waiting_bytes(pipe.fileno()) == full, "the pipe to be full")
        writer.send_signal(signal.SIGUSR1)
        assert len(pipe.read()) == NUM_SIGNS + 1
    assert writer.returncode == 0


IMPATIENT = f"""
import os
from pandal.screen import say
os.set_blocking(1, False)
say("x" * {NUM_SIGNS})
"""


def test_a_slow_reader_of_a_pipe_that_does_not_block_gets_all() -> None:
    """As where who started us reads it that way."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    command = (sys.executable, "-c", IMPATIENT)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
        pipe = writer.stdout
        assert pipe is not None
        full = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
        eventually(lambda: waiting_bytes(pipe.fileno()) == full, "the pipe to be full")
        assert len(pipe.read()) == NUM_SIGNS + 1
    assert writer.returncode == 0


def waiting_bytes(descriptor: int) -> int:
    (number,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
    return int(number)
