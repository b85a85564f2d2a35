"""What the autoscaler did to the local fleet, in lines for people."""

from collections.abc import Iterator

from autoscaler.decision import Code, Decision
from autoscaler.explain import sentence
from autoscaler.need import rates_of, supply_tokens_per_s
from autoscaler.plan import Release, SetCount
from autoscaler.policy import PoolPolicy
from autoscaler.pool import Phase
from autoscaler.reconciler import Report
from autoscaler.shrink import down_window_s


class ScalingNews:
    """A step down is decided in one tick and done in a later one: its reason is kept until then."""

    def __init__(self, policy: PoolPolicy) -> None:
        self._policy = policy
        self._down_reason = "fewer are needed"

    def lines(self, report: Report) -> Iterator[str]:
        for reason in report.decision.reasons:
            if reason.code is Code.DEMAND_DOWN:
                need, window_s = reason.figures["kept_tokens_per_s"], self._window_s(report)
                self._down_reason = f"at most {need:,.0f} tokens/s needed for {window_s:.0f} s"
        for action in report.done:
            if isinstance(action, SetCount):
                is_up = action.wanted > action.seen
                why = self._up(report) if is_up else self._down(report)
                yield f"replicas {action.seen} -> {action.wanted}: {why}"

    def _window_s(self, report: Report) -> float:
        return down_window_s(report.state, self._policy)

    def _up(self, report: Report) -> str:
        first = report.decision.reasons[0]
        if first.code is not Code.DEMAND_UP:
            return sentence(first)
        supply = self._supply_tokens_per_s(report.decision, report)
        need = supply + first.figures["missing_tokens_per_s"]
        does = "is ready does" if _all_are_ready(report) else "is ready or starting does"
        return f"work of {need:,.0f} tokens/s, what {does} {supply:,.0f}"

    def _down(self, report: Report) -> str:
        names = ", ".join(sorted(_released(report)))
        return f"{self._down_reason}; {names} drains" if names else self._down_reason

    def _supply_tokens_per_s(self, decision: Decision, report: Report) -> float:
        return supply_tokens_per_s(report.state, rates_of(decision.memory, self._policy))


def _all_are_ready(report: Report) -> bool:
    return all(found.num_ready == found.num_capacity for found in report.state.variants)


def _released(report: Report) -> set[str]:
    before = {
        replica.name
        for replica in report.state.replicas
        if replica.released_to is not None and replica.phase is not Phase.TERMINATING
    }
    return before | {action.replica for action in report.done if isinstance(action, Release)}
