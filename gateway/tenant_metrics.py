"""Counters of those tenants that an operator asked for by name: nobody else can add a label."""

from collections import Counter
from collections.abc import Collection, Iterator

from contracts import metrics as names
from gateway.token_counts import TokenCounts


class _Counts:
    """One tenant's."""

    __slots__ = ("by_status", "tokens")

    def __init__(self) -> None:
        self.by_status: Counter[int] = Counter()
        self.tokens = TokenCounts()

    def by_kind(self) -> Counter[str]:
        """Of status: 2xx, 4xx."""
        found: Counter[str] = Counter()
        for status, count in self.by_status.items():
            found[f"{status // 100}xx"] += count
        return found

    def by_class(self) -> dict[str, int]:
        """Of tokens, where there are any."""
        found = self.tokens.by_class()
        return found if any(found.values()) else {}


class TenantMetrics:
    def __init__(self, tenants: Collection[str]) -> None:
        self._counts = {tenant: _Counts() for tenant in tenants}

    def count(self, tenant: str, status: int, num_requests: int, tokens: TokenCounts) -> None:
        counts = self._counts.get(tenant)
        if counts is not None:
            counts.by_status[status] += num_requests
            counts.tokens.add(tokens)

    def lines(self) -> Iterator[str]:
        """In Prometheus' text format."""
        requests = {tenant: counts.by_kind() for tenant, counts in self._counts.items()}
        tokens = {tenant: counts.by_class() for tenant, counts in self._counts.items()}
        for name, label, found in (
            (names.GATEWAY_TENANT_REQUESTS, "status", requests),
            (names.GATEWAY_TENANT_TOKENS, "class", tokens),
        ):
            if any(found.values()):
                yield f"# TYPE {name} counter"
            for tenant, values in sorted(found.items()):
                for value, count in sorted(values.items()):
                    yield f'{name}{{tenant="{tenant}",{label}="{value}"}} {count}'
