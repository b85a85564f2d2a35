"""What the routing benchmark claims, and whether it holds."""

from dataclasses import dataclass

_HIT_SLACK, _TTFT_SLACK = 0.005, 1.03  # two runs of one policy differ by as much
_SIMPLE = ("round robin", "least requests", "least tokens")
_SHARING = ("multi-turn", "shared prompts")


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
    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Row] = {}
        self._results: list[tuple[bool, str]] = []

    def add(self, row: Row) -> None:
        self._rows[row.mix, row.policy] = row

    def moved(self, num: int, moved: float, share: float) -> None:
        self._say(moved <= share + 0.05, f"one more than {num - 1} moves {moved:.1%} of the keys")

    def cost(self, what: str, cost_us: float, limit_us: float) -> None:
        self._say(cost_us <= limit_us, f"{what}: {cost_us:.1f} µs, at most {limit_us:.0f}")

    def report(self) -> int:
        """The exit status."""
        for mix in _SHARING:
            self._order(mix, "exact", "bounded")
            for simple in _SIMPLE:
                self._order(mix, "bounded", simple)
        for policy in ("bounded", "exact"):
            self._balanced(policy)
            self._uniform(policy)
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
            a.ttft_p95_s <= b.ttft_p95_s * _TTFT_SLACK,
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
