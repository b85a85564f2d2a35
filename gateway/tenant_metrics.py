"""Counters of those tenants that an operator asked for by name: nobody else can add a label."""

from collections import Counter
from collections.abc import Collection, Iterator

from contracts import metrics as names
from gateway.metering import Usage


class _Counts:
    """One tenant's."""

    __slots__ = ("by_status", "num_cached_tokens", "num_input_tokens", "num_output_tokens")

    def __init__(self) -> None:
        self.by_status: Counter[int] = Counter()
        self.num_input_tokens = self.num_cached_tokens = self.num_output_tokens = 0

    @property
    def by_kind(self) -> Counter[str]:
        """Of status: 2xx, 4xx."""
        found: Counter[str] = Counter()
        for status, count in self.by_status.items():
            found[f"{status // 100}xx"] += count
        return found

    @property
    def tokens(self) -> dict[str, int]:
        """By class, where there are any."""
        found = {
            "input": self.num_input_tokens,
            "cached": self.num_cached_tokens,
            "output": self.num_output_tokens,
        }
        return found if any(found.values()) else {}


class TenantMetrics:
    def __init__(self, tenants: Collection[str]) -> None:
        self._counts = {tenant: _Counts() for tenant in tenants}

    def count(self, tenant: str, status: int, usage: Usage | None) -> None:
        counts = self._counts.get(tenant)
        if counts is None:
            return
        counts.by_status[status] += 1
        if usage is not None:
            cached = usage.cached_prompt_tokens
            counts.num_input_tokens += usage.prompt_tokens - cached
            counts.num_cached_tokens += cached
            counts.num_output_tokens += usage.completion_tokens

    def lines(self) -> Iterator[str]:
        """In Prometheus' text format."""
        requests = {tenant: counts.by_kind for tenant, counts in self._counts.items()}
        tokens = {tenant: counts.tokens for tenant, counts in self._counts.items()}
        for name, label, found in (
            (names.GATEWAY_TENANT_REQUESTS, "status", requests),
            (names.GATEWAY_TENANT_TOKENS, "class", tokens),
        ):
            if any(found.values()):
                yield f"# TYPE {name} counter"
            for tenant, values in sorted(found.items()):
                for value, count in sorted(values.items()):
                    yield f'{name}{{tenant="{tenant}",{label}="{value}"}} {count}'
