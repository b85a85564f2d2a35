"""The cache-aware policy of SGLang's router: what is published of it (``cache_aware.rs``), in a few
lines, so that it can be looked at on a virtual clock, too.

It knows nothing of a replica but what it sent there: it goes where the longest beginning was sent
last, if that is more than a share of the prompt, and else to whoever has the fewest requests.  Only
where these are far apart, by count and by factor, the fewest requests decide alone.
"""

from collections.abc import Mapping
from typing import Final

from gateway.routing.candidates import Candidates
from gateway.routing.decision import Reason, Scores
from gateway.routing.endpoint import RoutingRequest
from gateway.routing.text_chain import BOUNDARIES_BYTES

# As SGLang's router 0.3.2 has them by default.
_LEAST_MATCH: Final = 0.3
_FAR_APART, _FAR_APART_RATIO = 64, 1.5
_BYTES_PER_TOKEN: Final = 4


class CacheAware:
    name = "cache_aware"

    def __init__(self, num_open: Mapping[str, int]) -> None:
        self._num_open = num_open
        self._sent: dict[int, str] = {}  # by link of a text's chain: to whom, last

    def score(self, request: RoutingRequest, group: Candidates) -> Scores:
        counts = [self._num_open[endpoint.name] for endpoint in group.endpoints]
        place = counts.index(min(counts))
        is_balanced = max(counts) - min(counts) <= _FAR_APART
        if is_balanced or max(counts) <= min(counts) * _FAR_APART_RATIO:
            place = group.places.get(self._match(request), place)
        self._sent |= dict.fromkeys(request.chain, group.endpoints[place].name)
        return Scores((place,), (0.0,), Reason.HOME)

    def _match(self, request: RoutingRequest) -> str:
        for link in range(len(request.chain) - 1, -1, -1):
            name = self._sent.get(request.chain[link])
            if name is not None:
                matched_tokens = BOUNDARIES_BYTES[link] / _BYTES_PER_TOKEN
                return name if matched_tokens > _LEAST_MATCH * request.prompt_tokens else ""
        return ""
