"""One request at one replica, from when it is sent until it ends: what it adds to its load."""

from gateway.routing.prefix_memory import Promise
from gateway.routing.replica import Replica
from gateway.routing.ttft_forecast import Visit


class Stay:
    __slots__ = (
        "has_begun",
        "num_tokens",
        "promise",
        "prompt_tokens",
        "replica",
        "sent_s",
        "visit",
    )

    def __init__(
        self,
        replica: Replica,
        prompt_tokens: int,
        num_tokens: int,
        visit: Visit | None,
        promise: Promise | None = None,
    ) -> None:
        self.replica = replica
        self.prompt_tokens = prompt_tokens  # that are still to be prefilled, without cached ones
        self.num_tokens = num_tokens  # that count as its load now, those included
        self.visit = visit  # None: nobody asks for forecasts
        self.promise = promise  # None likewise
        self.sent_s: float | None = None  # None: its first token teaches nothing of the replica
        self.has_begun = False  # its answer
        replica.num_in_flight += 1
        replica.endpoint.add_load(num_tokens)

    def first_token(self) -> None:
        """Its prompt is through."""
        self.has_begun = True
        self.replica.endpoint.add_load(-self.prompt_tokens)
        self.num_tokens -= self.prompt_tokens
        self.prompt_tokens = 0

    def end(self) -> None:
        self.replica.num_in_flight -= 1
        self.replica.endpoint.add_load(-self.num_tokens)
