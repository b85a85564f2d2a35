"""What an operator wants of a pool, checked at construction, each figure with its reason."""

from dataclasses import dataclass

from autoscaler.errors import BadPolicy
from autoscaler.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Variant:
    """One kind of replica: a workload that can be counted up and down."""

    name: str
    max_replicas: int  # the quota of its GPUs
    num_slots: int  # requests that run together on one replica
    tokens_per_s: float  # work of one replica with all slots taken: planned, then learned
    cost_usd_per_h: float = 1.0  # of one replica; only the ratio between variants matters
    cold_start_s: float = 300.0  # expected until some have been measured; loading 140 GB takes it

    def __post_init__(self) -> None:
        _require(self.name, max_replicas=(self.max_replicas, 1), num_slots=(self.num_slots, 1))
        if self.tokens_per_s <= 0 or self.cost_usd_per_h <= 0 or self.cold_start_s < 0:
            raise BadPolicy(
                f"{self.name}: tokens_per_s and cost_usd_per_h must be positive and cold_start_s "
                f"not negative, got {self.tokens_per_s}, {self.cost_usd_per_h}, {self.cold_start_s}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPolicy:
    name: str
    variants: tuple[Variant, ...]
    min_replicas: int = 1  # 0: may scale to zero, if the gateway tells who asks of nothing
    is_told_by_gateway: bool = False  # its arrivals and queue; else engines count what they got
    max_replicas: int
    schedules: tuple[Schedule, ...] = ()
    urgency: float = 0.5  # 0: cheap, waits for proof; 1: fast, orders for what may come
    target_usage: float = 0.85  # of slots, before margins: beyond it waiting grows steeply
    headroom_replicas: int = 0  # warm ones above the need
    ttft_slo_s: float = 2.0  # longer and a user of a chat looks elsewhere
    min_ttft_samples: int = 20  # a p95 of fewer is the maximum by another name
    kv_guard_usage: float = 0.9  # above it engines preempt
    guard_window_s: float = 60.0  # a guard must hold this long to count
    up_window_s: float = 20.0  # two thirds of the looks in it must agree
    down_window_s: float = 240.0  # or a cold start's time: the largest need in it is kept
    down_interval_s: float = 60.0  # between two steps down
    down_step_ratio: float = 0.5  # of the replicas, in one step down
    idle_before_zero_s: float = 900.0  # without any request
    max_unknown_ratio: float = 0.3  # of serving replicas; above it nothing goes down
    respect_manual_s: float = 900.0  # a person's count, inside the bounds

    def __post_init__(self) -> None:
        _require(self.name, max_replicas=(self.max_replicas, 1), variants=(len(self.variants), 1))
        if not 0 <= self.min_replicas <= self.max_replicas:
            raise BadPolicy(
                f"{self.name}: 0 <= min_replicas <= max_replicas expected, got "
                f"{self.min_replicas} and {self.max_replicas}"
            )
        if self.min_replicas == 0 and not self.is_told_by_gateway:
            raise BadPolicy(
                f"{self.name}: min_replicas must be at least 1 where the gateway does not tell its "
                "queue: no engine would see the request that wakes the pool, got 0"
            )
        if self.min_replicas > sum(variant.max_replicas for variant in self.variants):
            raise BadPolicy(f"{self.name}: the variants' quotas do not hold min_replicas")
        if len({variant.name for variant in self.variants}) != len(self.variants):
            raise BadPolicy(f"{self.name}: each variant needs a name of its own")
        for name in ("urgency", "target_usage", "kv_guard_usage", "down_step_ratio"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise BadPolicy(f"{self.name}: {name} is a ratio of 0 to 1, got {value}")
        if self.target_usage == 0:
            raise BadPolicy(f"{self.name}: a target_usage of 0 can never be met")
        for schedule in self.schedules:
            if schedule.min_replicas > self.max_replicas:
                raise BadPolicy(
                    f"{self.name}: schedule '{schedule.cron}' wants {schedule.min_replicas} "
                    f"replicas, max_replicas is {self.max_replicas}"
                )


def _require(owner: str, **figures: tuple[int, int]) -> None:
    for name, (value, least) in figures.items():
        if value < least:
            raise BadPolicy(f"{owner}: {name} must be at least {least}, got {value}")
