"""The topic of usage events: whether it can lose one, and for how long billing may be away."""

from collections.abc import Iterator
from typing import Final

from billing.kafka_wiring import KafkaAccess
from pandal.doctor.finding import Finding, failure, fine, warning
from pandal.errors import PreflightFailed
from pandal.kafka import TopicFacts, brokers_at, topic_facts

_ABOUT: Final = "kafka"
_DAY_MS: Final = 86_400_000
_LEAST_DAYS: Final = 7


def kafka_findings(bootstrap: str, access: KafkaAccess, topic: str) -> list[Finding]:
    """Blocks."""
    try:
        facts = topic_facts(brokers_at(bootstrap, access), topic)
    except PreflightFailed as exc:
        return [failure(_ABOUT, str(exc), "events wait in the gateways' spools until it is back")]
    if facts is None:
        return [failure(_ABOUT, f"there is no topic {topic}", "create it; see docs/services.md")]
    return list(findings_of(facts, topic))


def findings_of(facts: TopicFacts, topic: str) -> Iterator[Finding]:
    partitions = f"{topic} has {facts.num_partitions} partitions"
    replicas = f"{facts.least_replicas} copies, {facts.least_in_sync} of them in step"
    yield fine(_ABOUT, f"{partitions}, {replicas}; gateways write with acks=all")
    if facts.least_replicas < 2:
        advice = "give the topic a replication factor of 3: one broker's disk is all there is"
        yield warning(_ABOUT, f"{topic} has one copy of each event", advice)
    elif facts.least_in_sync < facts.least_replicas:
        yield warning(_ABOUT, f"a copy of {topic} lags behind", "look after its brokers")
    if facts.min_in_sync is not None and facts.least_replicas > 1 and facts.min_in_sync < 2:
        advice = "min.insync.replicas=2: with 1, acks=all is the word of one broker"
        yield warning(_ABOUT, f"one copy is enough for {topic} to accept an event", advice)
    if facts.min_in_sync is not None and facts.least_in_sync < facts.min_in_sync:
        yield failure(_ABOUT, f"{topic} accepts nothing: too few copies", "bring brokers back")
    kept_ms = facts.retention_ms
    if kept_ms is not None and 0 <= kept_ms < _LEAST_DAYS * _DAY_MS:
        advice = f"retention.ms of {_LEAST_DAYS} days: what billing has not read by then is lost"
        yield warning(_ABOUT, f"{topic} keeps events for {kept_ms / _DAY_MS:.1f} days", advice)
