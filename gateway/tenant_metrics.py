"""Counters of those tenants that an operator asked for by name: nobody else can add a label."""

from collections import Counter
from collections.abc import Collection, Iterator

from contracts import metrics as names


class TenantMetrics:
    def __init__(self, tenants: Collection[str]) -> None:
        self._tenants = frozenset(tenants)
        self._requests: Counter[tuple[str, str]] = Counter()  # by tenant and kind of status
        self._tokens: Counter[tuple[str, str]] = Counter()  # by tenant and class

    def count(self, tenant: str, status: int, tokens: tuple[int, int, int] | None) -> None:
        """``tokens``: uncached input, cached input, output."""
        if tenant not in self._tenants:
            return
        self._requests[tenant, f"{status // 100}xx"] += 1
        if tokens is not None:
            for kind, num_tokens in zip(("input", "cached", "output"), tokens, strict=True):
                self._tokens[tenant, kind] += num_tokens

    def lines(self) -> Iterator[str]:
        """In Prometheus' text format."""
        for name, label, counts in (
            (names.GATEWAY_TENANT_REQUESTS, "status", self._requests),
            (names.GATEWAY_TENANT_TOKENS, "class", self._tokens),
        ):
            if counts:
                yield f"# TYPE {name} counter"
            for (tenant, value), count in sorted(counts.items()):
                yield f'{name}{{tenant="{tenant}",{label}="{value}"}} {count}'
