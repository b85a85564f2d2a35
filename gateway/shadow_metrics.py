"""What rules on trial would have refused: told apart for tenants that were named, and no others.

A series goes when its rule does, so that trials that are over leave room for the next.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from contracts import metrics as names
from contracts.quota import QuotaRule
from gateway.grants import PolicySnapshot
from gateway.label_text import rule_label

_MAX_SERIES: Final = 100


class ShadowMetrics:
    def __init__(self, tenants: Collection[str]) -> None:
        self._tenants = frozenset(tenants)
        self._counts: Counter[tuple[str, str]] = Counter()  # by tenant and label of the rule
        self._num_others = 0
        self._seen: PolicySnapshot | None = None

    def count(self, tenant: str, rule: QuotaRule) -> None:
        if tenant in self._tenants:
            series = tenant, rule_label(rule)
            if series in self._counts or len(self._counts) < _MAX_SERIES:
                self._counts[series] += 1
                return
        self._num_others += 1

    def keep_only(self, snapshot: PolicySnapshot | None) -> None:
        """Of its rules: looked at once for each snapshot."""
        if snapshot is self._seen or snapshot is None:
            return
        self._seen = snapshot
        if self._counts:
            known = {
                (grant.tenant.tenant_id, rule_label(rule))
                for grant in snapshot.grants.values()
                if grant.tenant.tenant_id in self._tenants
                for rule in grant.rules
                if rule.is_shadow
            }
            for series in self._counts.keys() - known:
                del self._counts[series]

    def lines(self) -> Iterator[str]:
        """In Prometheus' text format."""
        name = names.GATEWAY_SHADOW_REFUSALS
        yield f"# TYPE {name} counter"
        for (tenant, rule), count in sorted(self._counts.items()):
            yield f'{name}{{tenant="{tenant}",rule="{rule}"}} {count}'
        yield f'{name}{{rule="other"}} {self._num_others}'
