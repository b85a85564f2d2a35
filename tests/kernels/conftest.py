"""Levels this machine can run.  Compiled code is kept between runs, as in the product."""

from collections.abc import Iterator

import pytest

from kernels.threads.team import ThreadTeam
from kernels.vector_ir.levels import FeatureLevel, host_features, runnable_levels

RUNNABLE = runnable_levels(host_features())


@pytest.fixture(params=list(FeatureLevel), ids=str)
def level(request: pytest.FixtureRequest) -> FeatureLevel:
    """Each level the machine has the instructions for; the others are skipped and say so."""
    if request.param not in RUNNABLE:
        pytest.skip(f"this CPU cannot run {request.param}")
    return FeatureLevel(request.param)


@pytest.fixture(scope="session")
def team() -> Iterator[ThreadTeam]:
    with ThreadTeam(2) as threads:
        yield threads
