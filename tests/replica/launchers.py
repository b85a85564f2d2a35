"""Launchers that compute at the two ends of the time a step may take, without a thread.

Between them lies everything that a device beside the loop can do: whatever the loop gets wrong
about who writes what and when shows at one end or the other, and shows every time.
"""

from replica.engine.batch import FlatBatch
from replica.engine.launcher import CarryingRunner, ComputedStep, ModelRunner, Tokens


class EarlyLauncher:
    """A StepLauncher: a step is through as soon as it is launched."""

    num_ahead = 1

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = CarryingRunner(runner)

    def launch(self, batch: FlatBatch) -> ComputedStep:
        return ComputedStep(self._runner.execute(batch))


class LateLauncher:
    """A StepLauncher: a step is computed when its tokens are asked for, and not before."""

    num_ahead = 1

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = CarryingRunner(runner)

    def launch(self, batch: FlatBatch) -> "LateStep":
        return LateStep(self._runner, batch)


class LateStep:
    """A LaunchedStep."""

    def __init__(self, runner: CarryingRunner, batch: FlatBatch) -> None:
        self._runner = runner
        self._batch = batch

    def result(self) -> Tokens:
        """The loop asks once for each, in order."""
        return self._runner.execute(self._batch)
