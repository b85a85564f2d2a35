"""Between the loop and the model: steps are launched now and their tokens asked for later.

A batch may carry tokens over from the batch launched before it, whose values nobody knows yet.
They are put in just before it is computed, so the loop can prepare and launch a step while the last
one is still being computed.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from replica.engine.batch import FlatBatch, with_carried_tokens
from replica.engine.step import SampledToken

Tokens = Sequence[SampledToken | None]


class ModelRunner(Protocol):
    def execute(self, batch: FlatBatch) -> Tokens:
        """One entry per segment; None where nothing was sampled and all numbers are finite.

        What lies in a block beyond its tokens, or was left by an earlier owner, changes nothing.
        """
        ...


class LaunchedStep(Protocol):
    def result(self) -> Tokens:
        """Waits for it.  Raises what computing raised."""
        ...


@runtime_checkable
class StepLauncher(Protocol):
    @property
    def num_ahead(self) -> int:
        """How many steps the loop launches before it asks for the first one's tokens."""
        ...

    def launch(self, batch: FlatBatch) -> LaunchedStep:
        """Batches are computed in the order in which they were launched."""
        ...


class CarryingRunner:
    """Puts the tokens of one batch into the next."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._latest: Tokens = ()

    def execute(self, batch: FlatBatch) -> Tokens:
        self._latest = self._runner.execute(with_carried_tokens(batch, self._latest))
        return self._latest


@dataclass(frozen=True, slots=True)
class ComputedStep:
    """A LaunchedStep."""

    tokens: Tokens

    def result(self) -> Tokens:
        return self.tokens


class InlineLauncher:
    """A StepLauncher that computes at once: nothing overlaps."""

    num_ahead = 0

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def launch(self, batch: FlatBatch) -> ComputedStep:
        return ComputedStep(self._runner.execute(batch))


class ThreadLauncher:
    """A StepLauncher with a thread that computes while the loop prepares and accounts.

    Kernels and torch let go of the interpreter while they compute.
    """

    num_ahead = 1

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = CarryingRunner(runner)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="steps")

    def launch(self, batch: FlatBatch) -> LaunchedStep:
        return self._thread.submit(self._runner.execute, batch)
