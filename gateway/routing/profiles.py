"""The profiles that an operator may choose among."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.routing.filters.permitted import Permitted
from gateway.routing.filters.ready import Ready
from gateway.routing.filters.serves_model import ServesModel
from gateway.routing.hot_prefixes import HotPrefixes
from gateway.routing.pickers.least_cost import LeastCost
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.prefix_reuse import PrefixReuse
from gateway.routing.profile import RoutingProfile, Scorer
from gateway.routing.scorers.exact_prefix import ExactPrefix
from gateway.routing.scorers.least_tokens import LeastTokens
from gateway.routing.scorers.prefix_owners import PrefixOwners


@dataclass(frozen=True, slots=True)
class RoutingOptions:
    load_factor: float  # see ``PrefixOwners``
    least_prefix_tokens: int


def routing_profile(
    options: RoutingOptions,
    hot: HotPrefixes,
    reuse: PrefixReuse,
    random: Callable[[], float],
    index: PrefixIndex | None = None,
) -> RoutingProfile:
    """By where prefixes live; with an ``index``, by what replicas have really cached."""
    scorer: Scorer
    scorer = owners = PrefixOwners(
        hot,
        reuse,
        LeastTokens(random),
        options.load_factor,
        options.least_prefix_tokens,
    )
    if index is not None:
        scorer = ExactPrefix(index.anchors, owners)
    return RoutingProfile([ServesModel(), Permitted(), Ready()], scorer, LeastCost(random))
