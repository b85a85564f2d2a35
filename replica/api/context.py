"""What request handlers share."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request

from replica.api.patience import Patience
from replica.api.witness import Witness
from replica.engine.engine import Engine


@dataclass(slots=True)
class Cordon:
    is_drawn: bool = False  # forgotten by a restart: whoever drew it tells again


@dataclass(frozen=True, slots=True)
class ReplicaContext:
    engine: Engine
    cordon: Cordon
    patience: Patience
    witness: Witness
    max_body_bytes: int
    max_choices: int  # of one request
    new_id: Callable[[], str]
    new_seed: Callable[[], int]  # 63 random bits
    unix_time_s: Callable[[], int]
    started_at_unix_s: int


def context_of(request: Request) -> ReplicaContext:
    context = request.app.state.context
    assert isinstance(context, ReplicaContext)
    return context
