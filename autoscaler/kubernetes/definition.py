"""``python -m autoscaler.kubernetes.definition``: the CustomResourceDefinition on standard output.

Generated from the dataclasses of the policy, the resource and its status; the rules below add what
people read and what the API server refuses.  The chart's copy is this program's output.
"""

import sys
from typing import Final

import yaml

from autoscaler.kubernetes.names import GROUP, KIND, PLURAL, VERSION
from autoscaler.kubernetes.pool_status import PoolStatus
from autoscaler.kubernetes.resource import NOT_IN_SPEC, PoolSpec
from autoscaler.kubernetes.wire import Json, Rule, Rules, schema_of
from autoscaler.schedule import MAX_DURATION_S

_ABOVE_0: Final = {"exclusiveMinimum": True}
_TIME: Final = {"format": "date-time"}
_NAME: Final = {"minLength": 1, "maxLength": 253}


def _map_by(key: str) -> Json:
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


SPEC_RULES: Final[Rules] = {
    "variants": Rule(
        "Kinds of replica, one per kind of GPU; the cheapest sufficient mix is ordered.",
        more={"minItems": 1, "maxItems": 16, **_map_by("name")},
    ),
    "name": Rule("Unique within the list, or the name of the workload.", more=_NAME),
    "target": Rule("The workload whose count is written: anything with a scale subresource."),
    "api_version": Rule("Group and version of the workload.", more=_NAME),
    "kind": Rule("Kind of the workload.", more=_NAME),
    "max_replicas": Rule("Most replicas: of the pool, or by quota of a variant.", 1, 10_000),
    "num_slots": Rule("Requests that run together on one replica.", 1, 100_000),
    "tokens_per_s": Rule(
        "Planned work of one replica with all slots taken; learned from then on.", 0, more=_ABOVE_0
    ),
    "cost_usd_per_h": Rule("Of one replica; only ratios matter.", 0, more=_ABOVE_0),
    "cold_start_s": Rule("Expected until some starts have been measured.", 0, 86_400),
    "min_replicas": Rule("Fewest replicas; 0 needs a gateway that tells who asks.", 0, 10_000),
    "schedules": Rule("Times at which more must be ready.", more={"maxItems": 64}),
    "cron": Rule("minute hour day month weekday, as in crontab(5).", more={"maxLength": 256}),
    "duration_s": Rule("How long each firing lasts.", 60, MAX_DURATION_S),
    "time_zone": Rule("Whose clock the cron expression reads.", more={"maxLength": 64}),
    "urgency": Rule("0 waits for proof and is cheap, 1 orders for what may come.", 0, 1),
    "target_usage": Rule("Of slots, before margins.", 0, 1, _ABOVE_0),
    "headroom_replicas": Rule("Warm replicas above the need.", 0, 10_000),
    "ttft_slo_s": Rule("Later first tokens ask for one more replica.", 0, more=_ABOVE_0),
    "min_ttft_samples": Rule("A percentile of fewer is no evidence.", 1),
    "kv_guard_usage": Rule("Fuller KV caches ask for one more replica.", 0, 1),
    "guard_window_s": Rule("How long a guard must hold to count.", 0),
    "up_window_s": Rule("Two thirds of the looks in it must agree.", 0),
    "down_window_s": Rule(
        "The largest need in it, or in a cold start and a minute if that is longer, is kept.", 0
    ),
    "down_interval_s": Rule("Between two steps down.", 0),
    "down_step_ratio": Rule("Of the replicas, in one step down.", 0, 1),
    "idle_before_zero_s": Rule("Without any request, before the last replica goes.", 0),
    "max_unknown_ratio": Rule("Of serving replicas that do not tell: above it none goes.", 0, 1),
    "respect_manual_s": Rule("How long a person's count inside the bounds is kept.", 0),
    "metrics_port": Rule("Where replicas tell their load and are cordoned.", 1, 65_535),
    "gateway": Rule("Who asks: the gateway's pods. Without it engines' counters are all."),
    "label_selector": Rule("Of the gateway's pods in this namespace.", more=_NAME),
    "port": Rule("Of the gateway's metrics.", 1, 65_535),
    "drain_deadline_s": Rule("A replica with streams goes after this time at the latest.", 0),
    "is_dry_run": Rule("Decide and say, and act on nothing."),
}

STATUS_RULES: Final[Rules] = {
    "observed_generation": Rule("Of the spec that was decided by."),
    "decided_at": Rule("When these figures were taken.", more=_TIME),
    "decided_by": Rule("Whose leadership wrote this, and the how manieth of its lease."),
    "num_wanted": Rule("Replicas wanted, those that drain not counted."),
    "num_ordered": Rule("The targets' counts together."),
    "num_ready": Rule("Replicas that take requests."),
    "reason": Rule("The first reason, or the condition's, for programs."),
    "reasons": Rule("Why, with figures.", more=_map_by("code")),
    "code": Rule("One of a closed set."),
    "message": Rule("The same in a sentence."),
    "figures": Rule("What the sentence is made of."),
    "variants": Rule("Replicas by kind and phase.", more=_map_by("name")),
    "name": Rule("Of the variant."),
    "num_starting": Rule("On a node, not ready yet."),
    "num_draining": Rule("Finishing what they have."),
    "num_unschedulable": Rule("No node has the GPUs for them: not capacity, not ordered twice."),
    "num_stuck": Rule("Not ready after a time in which others are."),
    "num_terminating": Rule("Out of the count already."),
    "tokens_per_s": Rule("Learned work of one replica."),
    "cold_starts_s": Rule("Measured from node to ready, the newest last."),
    "planned": Rule("Actions of this tick; in a dry run nobody takes them."),
    "orders": Rule("Counts that the autoscaler wrote, by variant."),
    "written": Rule("The count before the last order."),
    "writing": Rule("The count of the last order."),
    "conditions": Rule("Valid, Observed, Conflict, Schedulable, Acting.", more=_map_by("type")),
    "type": Rule("Of the condition."),
    "status": Rule("Whether it holds.", more={"enum": ["True", "False", "Unknown"]}),
    "last_transition_time": Rule("When the status last changed.", more=_TIME),
}

_VALIDATIONS: Final = (
    ("self.minReplicas <= self.maxReplicas", "minReplicas must not be above maxReplicas"),
    (
        "self.minReplicas > 0 || has(self.gateway)",
        "minReplicas of 0 needs a gateway: no engine sees the request that wakes the pool",
    ),
    (
        "!has(self.schedules) || self.schedules.all(s, s.minReplicas <= self.maxReplicas)",
        "a schedule's minReplicas must not be above maxReplicas",
    ),
    (
        "self.variants.map(v, v.maxReplicas).sum() >= self.minReplicas",
        "the variants' maxReplicas together must hold minReplicas",
    ),
)

_COLUMNS: Final = (
    ("Wanted", "integer", ".status.wanted", 0),
    ("Ordered", "integer", ".status.ordered", 0),
    ("Ready", "integer", ".status.ready", 0),
    ("Reason", "string", ".status.reason", 0),
    ("Acting", "string", '.status.conditions[?(@.type=="Acting")].reason', 0),
    ("Why", "string", ".status.reasons[0].message", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)


def definition() -> Json:
    names = {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "shortNames": ["rp"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {**names, "singular": KIND.lower()},
            "versions": [_version()],
        },
    }


def _version() -> Json:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
        "schema": {"openAPIV3Schema": _schema()},
    }


def _schema() -> Json:
    spec = schema_of(PoolSpec, SPEC_RULES, without=NOT_IN_SPEC)
    spec["x-kubernetes-validations"] = [{"rule": r, "message": m} for r, m in _VALIDATIONS]
    return {
        "type": "object",
        "description": "A fleet of replicas of one model, and how many there shall be.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": schema_of(PoolStatus, STATUS_RULES),
        },
    }


def _column(name: str, type_: str, path: str, priority: int) -> Json:
    column: Json = {"name": name, "type": type_, "jsonPath": path}
    return {**column, "priority": priority} if priority else column


def as_yaml() -> str:
    text: str = yaml.safe_dump(definition(), sort_keys=False, width=100)
    return text


if __name__ == "__main__":
    sys.stdout.write(as_yaml())
