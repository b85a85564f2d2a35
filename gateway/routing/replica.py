"""One replica: its client and what is known of it."""

from collections.abc import Mapping
from typing import Final

from contracts.load import ReplicaLoad
from gateway.routing.adapter_names import AdapterNames, Told
from gateway.routing.ejection import Record
from gateway.routing.endpoint import Endpoint
from gateway.routing.foreign_metrics import Engine, ForeignLoad
from gateway.routing.kv_pressure import preemption_tokens
from gateway.routing.others_load import FRESH_S, OthersLoad
from gateway.routing.outside import Outside
from gateway.routing.prompt_tokens import PromptTokens
from gateway.routing.ttft_forecast import TtftForecast
from gateway.upstream.replica_client import ReplicaClient

_TOKENS_EACH: Final = 512.0  # of a request of which nothing is known
_BLIP_S: Final = 3.0  # away for no longer: it has not been restarted, and its cache is warm


class Replica:
    def __init__(
        self,
        client: ReplicaClient,
        models: frozenset[str] | None = None,
        outside: Outside | None = None,
    ) -> None:
        """``models`` and ``outside``: of another owner's, who is asked nothing."""
        self.client = client
        self.name = client.name
        self.models = models  # None: it has never told
        self.outside = outside  # None: it is ours
        self.adapters: Mapping[str, str] = {}  # whose each is, by those of the models that are one
        self.names: Mapping[str, str | None] = {}  # of models, here; None: it has none
        self.parents: Mapping[str, str] = {}  # as ``adapters``, by their names here
        self.endpoint = Endpoint(
            client.name,
            is_ready=outside is not None,
            models=models or frozenset(),
            surcharge=0.0 if outside is None else 1.0 / outside.weight - 1.0,
            keeps_prefixes=outside is None,
        )
        self.forecast = TtftForecast()
        self.others = OthersLoad()
        self.record = Record()
        self.num_in_flight = 0  # requests this gateway has open on it
        self.engine: Engine | None = None  # not known yet
        self.prompt_tokens: PromptTokens | None = None  # while its block events need it
        self.prefill_tokens_per_s = 0.0  # 0: it has not told
        self.knows_load = True  # until it says otherwise
        self.has_reported = False  # it is one of our own make
        self._others_tokens = 0  # of its endpoint's load
        self._kv_tokens = 0  # as above: what a full KV cache would have it do again
        self._kv_told = (0, float("-inf"))  # the same as reported, and when
        self._warm_since_s: float | None = None  # None: it is warm
        self._away_since_s = float("-inf")

    @property
    def is_ready(self) -> bool:
        return self.endpoint.is_ready

    def report(self, load: ReplicaLoad, now_s: float) -> None:
        self.engine = Engine.PANDAL
        self.forecast.report(load, now_s)
        self.others.report(load, self.num_in_flight, now_s)
        self.prefill_tokens_per_s = load.prefill_tokens_per_s
        kv_tokens = load.num_kv_blocks * load.block_size
        self._note_kv(load.kv_cache_usage, kv_tokens, load.num_running, now_s)

    def report_foreign(self, load: ForeignLoad, now_s: float) -> None:
        """Others' requests count as ours do on average, where we have any there."""
        self.engine = load.engine
        if load.engine is Engine.OTHER:
            return
        self._note_kv(load.kv_usage, load.kv_tokens, load.num_running, now_s)
        own_tokens = self.endpoint.load_tokens - self._others_tokens - self._kv_tokens
        each = own_tokens / self.num_in_flight if self.num_in_flight else _TOKENS_EACH
        self.others.report_requests(load.num_requests, self.num_in_flight, each, now_s)

    def set_others_tokens(self, num_tokens: int) -> None:
        self.endpoint.add_load(num_tokens - self._others_tokens)
        self._others_tokens = num_tokens

    def refresh_kv(self, now_s: float) -> None:
        """What is no longer fresh is not held against it: sequences end sooner than loads fade."""
        told, told_s = self._kv_told
        tokens = told if now_s - told_s <= FRESH_S else 0
        self.endpoint.add_load(tokens - self._kv_tokens)
        self._kv_tokens = tokens

    def _note_kv(self, kv_usage: float, kv_tokens: float, num_running: int, now_s: float) -> None:
        self._kv_told = (preemption_tokens(kv_usage, kv_tokens, num_running), now_s)

    def set_ready(self, is_ready: bool, now_s: float = 0.0, *, is_join: bool = False) -> None:
        """With the models that it serves.  ``is_join``: its cache is cold if it has been away."""
        endpoint = self.endpoint
        if is_ready and not endpoint.is_ready and is_join and now_s - self._away_since_s > _BLIP_S:
            self._warm_since_s = now_s
            endpoint.warmth = 0.0
        if endpoint.is_ready and not is_ready:
            self._away_since_s = now_s
        endpoint.is_ready = is_ready
        self._list_models()

    def name_models(self, adapters: AdapterNames) -> None:
        """By what they go by among those of all replicas."""
        told = self.told()
        self.names = {own: adapters.names[own, base] for own, base in told}
        self.parents = {self.names[own] or own: base for own, base in told if base is not None}
        self._list_models()

    def _list_models(self) -> None:
        named = (self.names.get(model, model) for model in self.models or ())
        self.endpoint.models = frozenset(name for name in named if name is not None)

    def told(self) -> list[Told]:
        """Another owner's are named by the operator: they are what they are called."""
        if self.outside is not None:
            return []
        return [(model, self.adapters.get(model)) for model in self.models or ()]

    def warm_up(self, now_s: float, slow_start_s: float) -> None:
        if self._warm_since_s is None:
            return
        age_s = now_s - self._warm_since_s
        self.endpoint.warmth = 1.0 if age_s >= slow_start_s else age_s / slow_start_s
        if self.endpoint.warmth == 1.0:
            self._warm_since_s = None
