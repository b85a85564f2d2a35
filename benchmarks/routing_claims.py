"""What the routing benchmark claims, and whether it holds."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_HIT_SLACK, _TTFT_SLACK = 0.005, 1.03  # two runs of one policy differ by as much
_SHARING = ("multi-turn", "shared prompts")


HEAD = (
    "| mix | policy | hit % | TTFT p50 s | p95 s | max/mean tokens | requests |\n"
    "|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True)
class Row:
    mix: str
    policy: str
    hit_ratio: float  # of prompt tokens
    ttft_p50_s: float
    ttft_p95_s: float
    max_over_mean: float  # of the replicas' outstanding tokens, each averaged over time
    num_requests: int

    def line(self) -> str:
        return (
            f"| {self.mix} | {self.policy} | {self.hit_ratio * 100:.1f} | {self.ttft_p50_s:.3f} | "
            f"{self.ttft_p95_s:.3f} | {self.max_over_mean:.2f} | {self.num_requests} |"
        )


class Claims:
    def __init__(self, ttft_slack: float = _TTFT_SLACK) -> None:
        self._ttft_slack = ttft_slack
        self._rows: dict[tuple[str, str], Row] = {}
        self._results: list[tuple[bool, str]] = []

    def add(self, row: Row) -> None:
        self._rows[row.mix, row.policy] = row

    def moved(self, num: int, moved: float, share: float) -> None:
        self._say(moved <= share + 0.05, f"one more than {num - 1} moves {moved:.1%} of the keys")

    def cost(self, what: str, cost_us: float, limit_us: float) -> None:
        self._say(cost_us <= limit_us, f"{what}: {cost_us:.1f} µs, at most {limit_us:.0f}")

    def judge(self, simple: Sequence[str]) -> None:
        """Exact is no worse than bounded, and that no worse than what is ``simple``."""
        for mix in _SHARING:
            self._order(mix, "exact", "bounded")
            for policy in simple:
                self._order(mix, "bounded", policy)
        for policy in ("bounded", "exact"):
            self._balanced(policy)
            self._uniform(policy)

    def report(self) -> int:
        """The exit status."""
        print()
        for holds, claim in self._results:
            print(f"{'holds' if holds else 'DOES NOT HOLD'}: {claim}")
        return 0 if all(holds for holds, _ in self._results) else 1

    def _order(self, mix: str, better: str, worse: str) -> None:
        a, b = self._rows.get((mix, better)), self._rows.get((mix, worse))
        if a is None or b is None:
            return
        self._say(
            a.hit_ratio >= b.hit_ratio - _HIT_SLACK,
            f"{mix}: {better} finds at least as much as {worse} "
            f"({a.hit_ratio:.1%}, {b.hit_ratio:.1%})",
        )
        self._say(
            a.ttft_p95_s <= b.ttft_p95_s * self._ttft_slack,
            f"{mix}: TTFT p95 of {better} is no longer than {worse}'s "
            f"({a.ttft_p95_s:.3f} s, {b.ttft_p95_s:.3f} s)",
        )

    def _balanced(self, policy: str) -> None:
        row = self._rows.get(("zipf", policy))
        if row is not None:
            ratio = row.max_over_mean
            self._say(ratio <= 1.3, f"zipf: max/mean of {policy} is at most 1.3 ({ratio:.2f})")

    def _uniform(self, policy: str) -> None:
        row = self._rows.get(("uniform", policy))
        plain = self._rows.get(("uniform", "least tokens"))
        if row is not None and plain is not None:
            ratio = row.ttft_p95_s / plain.ttft_p95_s
            self._say(
                ratio <= 1.05,
                f"uniform: TTFT p95 of {policy} is at most 5 % above least tokens' ({ratio:.2f})",
            )

    def _say(self, holds: bool, claim: str) -> None:
        self._results.append((holds, claim))


def mean_row(rows: Sequence[Row]) -> Row:
    """Of several runs of one policy with one mix."""

    def mean(of: Callable[[Row], float]) -> float:
        return statistics.fmean(map(of, rows))

    return Row(
        mix=rows[0].mix,
        policy=rows[0].policy,
        hit_ratio=mean(lambda row: row.hit_ratio),
        ttft_p50_s=mean(lambda row: row.ttft_p50_s),
        ttft_p95_s=mean(lambda row: row.ttft_p95_s),
        max_over_mean=mean(lambda row: row.max_over_mean),
        num_requests=sum(row.num_requests for row in rows),
    )
