"""What the gateway's pages say of who asks, also where no engine is left to say it (pure).

A request counts when it comes, not when it ends: one that streams for an hour is demand now.  Those
that the gateway turned away for the client's sake (a bad key, a spent quota) or for its own are no
demand on replicas; those that found none, or none in time, are.
"""

from typing import Final

from autoscaler.errors import SourceFailed
from autoscaler.exposition import Families, finite_count, normal_name
from autoscaler.latency import buckets_of
from autoscaler.observe import GatewaySample
from autoscaler.pages import Reading
from contracts import metrics as names

_UNAVAILABLE: Final = 503
_FOUND_NO_REPLICA: Final = "server_is_overloaded"  # the gateway's word, by 503 or by 429


def gateway_sample(families: Families, taken_at_s: float | None = None) -> GatewaySample:
    """Of one gateway.  Raises SourceFailed for a page without a gateway's names."""
    return GatewaySample(
        _num_ended(families),
        int(_gauge(families, names.GATEWAY_WAITING_REQUESTS)),
        int(_gauge(families, names.GATEWAY_ACTIVE_REQUESTS)),
        buckets_of(families, names.GATEWAY_TTFT),
        taken_at_s,
    )


GATEWAY_READING: Final = Reading(
    (
        names.GATEWAY_REQUESTS, names.GATEWAY_REFUSALS, names.GATEWAY_WAITING_REQUESTS,
        names.GATEWAY_ACTIVE_REQUESTS, f"{names.GATEWAY_TTFT}_bucket",
    ),
    gateway_sample,
)  # fmt: skip


def _num_ended(families: Families) -> float:
    begun = (
        sample.value
        for sample in families.get(normal_name(names.GATEWAY_REQUESTS), ())
        if _is_begun(_status(sample.labels.get("status", "")))
    )
    refused = (
        sample.value
        for sample in families.get(normal_name(names.GATEWAY_REFUSALS), ())
        if sample.labels.get("reason") == _FOUND_NO_REPLICA
    )
    return finite_count(names.GATEWAY_REQUESTS, sum(begun) + sum(refused))


def _is_begun(status: int) -> bool:
    return status < 400 or (status >= 500 and status != _UNAVAILABLE)


def _status(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise SourceFailed(f"{names.GATEWAY_REQUESTS}: a status that is no number")
    return int(text)


def _gauge(families: Families, name: str) -> float:
    samples = families.get(normal_name(name))
    if not samples:
        raise SourceFailed(f"{name} is missing")
    return finite_count(name, sum(sample.value for sample in samples))
