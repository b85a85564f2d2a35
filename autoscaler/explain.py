"""A decision in sentences, with its numbers: for ``explain``, events and conditions (pure)."""

from collections.abc import Mapping
from typing import Final

from autoscaler.decision import Code, Decision, Reason

_SENTENCES: Final[Mapping[Code, str]] = {
    Code.STEADY: "what is there is what is needed",
    Code.OUTLOOK: "{now_tokens_per_s:,.0f} tokens/s of work arrive, {ahead_tokens_per_s:,.0f} "
    "expected in {horizon_s:.0f} s; {chance_tokens_per_s:,.0f} for chance, "
    "{backlog_tokens_per_s:,.0f} for what waits, {headroom_tokens_per_s:,.0f} kept warm; "
    "requests hold slots of {held_tokens_per_s:,.0f}",
    Code.DEMAND_UP: "{missing_tokens_per_s:,.0f} tokens/s are missing in what serves or is ordered",
    Code.NOT_SUSTAINED: "more is needed now; it has not lasted yet",
    Code.BACKLOG: "{num_waiting:.0f} requests wait: too many to look twice",
    Code.TTFT_GUARD: "first tokens have been later than their target for {for_s:.0f} s",
    Code.KV_GUARD: "KV caches have been full for {for_s:.0f} s",
    Code.WOKEN: "{num_waiting:.0f} requests wait and nothing serves",
    Code.DEMAND_DOWN: "{kept_tokens_per_s:,.0f} tokens/s is the most that was needed in the window",
    Code.WINDOW_HOLDS: "demand is known for {known_s:.0f} s only; nothing goes down yet",
    Code.INTERVAL_HOLDS: "the last step down is {since_s:.0f} s ago",
    Code.SURVIVORS_HOLD: "those that stay have no room for {num_in_flight:.0f} requests",
    Code.IDLE: "nobody has asked for a while and nothing is in flight",
    Code.UNKNOWN_DEMAND: "demand is not known: holding",
    Code.UNKNOWN_REPLICAS: "{num_unknown:.0f} replicas do not tell their load: nothing goes down",
    Code.UNSCHEDULABLE: "{num_replicas:.0f} replicas find no node",
    Code.STUCK: "{num_replicas:.0f} replicas do not become ready",
    Code.UNSEEN: "{num_replicas:.0f} replicas were ordered and never came",
    Code.FLOOR: "at least {floor:.0f} replicas are to be there",
    Code.CEILING: "quota or ceiling is reached",
    Code.SCHEDULE: "a schedule asks for {floor:.0f} replicas",
    Code.MANUAL: "someone else wrote the count: respected for another {left_s:.0f} s",
}


def sentence(reason: Reason) -> str:
    return _SENTENCES[reason.code].format_map(reason.figures)


def explained(pool: str, decision: Decision) -> list[str]:
    """The wanted counts, then one line per reason."""
    counts = ", ".join(f"{name} {count}" for name, count in sorted(decision.wanted.items()))
    return [f"{pool}: {counts}", *(f"{r.code}: {sentence(r)}" for r in decision.reasons)]
