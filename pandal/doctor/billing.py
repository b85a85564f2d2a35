"""A billing elsewhere, by what it tells of itself: ``/health`` and ``/metrics``.

Its log and its ledger are not to be seen from here.
"""

import math
import time
from collections.abc import Collection, Iterator
from typing import Final

from autoscaler.errors import SourceFailed
from autoscaler.exposition import Families, parse
from contracts import metrics
from pandal.bill import HOW_TO_PRICE
from pandal.doctor.finding import Finding, failure, fine, warning
from pandal.doctor.spans import span
from pandal.errors import Unreachable
from pandal.http_client import Address, get, parse_url
from pandal.screen import one_line

_ABOUT: Final = "billing"
_ANSWER_S: Final = 5.0
_STOPPED_S: Final = 600.0  # as PandalBillingStopped has it
_UNCHECKED_S: Final = 3 * 3_600.0  # as PandalBooksUnchecked, at the interval that is the default
_HUNG: Final = 503
_RUNBOOKS: Final = "docs/runbooks"
_OF_BILLING: Final = frozenset({
    metrics.BILLING_READ_AT, metrics.BILLING_LAG, metrics.BILLING_EVENTS, metrics.BILLING_UNPRICED,
    metrics.BILLING_DEAD_LETTERS, metrics.BILLING_RECONCILED_AT, metrics.BILLING_DIFFERENCES,
})  # fmt: skip


def billing_url_findings(url: str) -> Iterator[Finding]:
    """Raises BadOption for what is no URL.  Blocks."""
    address = parse_url(url, option="--billing")
    try:
        state, told = _asked(address)
    except (Unreachable, SourceFailed) as exc:
        fact = f"{url}: {one_line(str(exc))}"
        yield failure(_ABOUT, fact, "its log tells why it does not run")
        return
    yield _reading(url, state, told, time.time())
    yield from _left_aside(url, told)
    yield from _comparison(url, told, time.time())


def _asked(address: Address) -> tuple[str, Families]:
    """Raises Unreachable, SourceFailed."""
    lines = _page(address, "/health", (200, _HUNG)).splitlines()
    told = parse(_page(address, "/metrics", (200,)))
    for name in _OF_BILLING & told.keys():
        if not all(math.isfinite(sample.value) for sample in told[name]):
            raise SourceFailed(f"its {name} is no number")
    return one_line(lines[0]) if lines else "", told


def _page(address: Address, path: str, expected: Collection[int]) -> str:
    """Raises Unreachable."""
    answer = get(address, path, timeout_s=_ANSWER_S)
    if answer.status not in expected:
        raise Unreachable(f"{path} answers {answer.status}: is this a billing?")
    return answer.body.decode(errors="replace")


def _reading(url: str, state: str, told: Families, now_s: float) -> Finding:
    read_at_s, lag_s = _number(told, metrics.BILLING_READ_AT), _number(told, metrics.BILLING_LAG)
    last = "never" if read_at_s is None else f"{span(now_s - read_at_s)} ago"
    if state == "opening":
        fact = f"{url}: it upgrades its ledger, or prices what waited"
        return warning(_ABOUT, fact, f"let it; {_RUNBOOKS}/PandalBillingStopped.md")
    if state != "ok" or read_at_s is None or now_s - read_at_s > _STOPPED_S:
        fact = f"{url}: it is {state or 'silent'}, and has read without a fault {last}"
        return failure(
            _ABOUT, fact, f"its log says what it meets; {_RUNBOOKS}/PandalBillingStopped.md"
        )
    late = _number(told, metrics.BILLING_EVENTS, outcome="late") or 0.0
    more = f"; {late:.0f} events came after their invoice, and are of the next" if late else ""
    lag = "it has posted nothing yet" if lag_s is None else f"its last batch was {span(lag_s)} old"
    return fine(_ABOUT, f"{url}: it read {last}; {lag}{more}")


def _left_aside(url: str, told: Families) -> Iterator[Finding]:
    """In the ledger, as the last comparison saw it, and since this process began."""
    unpriced = _most(told, metrics.BILLING_UNPRICED, outcome="unpriced")
    if unpriced:
        yield warning(_ABOUT, f"{url}: {unpriced:.0f} events wait for a price", HOW_TO_PRICE)
    dead = _most(told, metrics.BILLING_DEAD_LETTERS, outcome="dead")
    if dead:
        fact = f"{url}: {dead:.0f} events could not be understood"
        yield warning(_ABOUT, fact, f"{_RUNBOOKS}/PandalDeadLetters.md")


def _most(told: Families, gauge: str, *, outcome: str) -> float:
    """The gauge where there is one: what was counted may be mended since."""
    kept = _number(told, gauge)
    counted = _number(told, metrics.BILLING_EVENTS, outcome=outcome)
    return kept if kept is not None else 0.0 if counted is None else counted


def _comparison(url: str, told: Families, now_s: float) -> Iterator[Finding]:
    at_s = _number(told, metrics.BILLING_RECONCILED_AT)
    advice = f"{_RUNBOOKS}/PandalBooksUnchecked.md"
    if at_s is None:
        yield warning(_ABOUT, f"{url}: it has not compared all accounts yet", advice)
    elif now_s - at_s > _UNCHECKED_S:
        fact = f"{url}: it compared all accounts the last time {span(now_s - at_s)} ago"
        yield warning(_ABOUT, fact, advice)
    differences = told.get(metrics.BILLING_DIFFERENCES, [])
    kinds = ", ".join(
        sorted(
            one_line(each.labels.get("kind", "of no kind")) for each in differences if each.value
        )
    )
    if kinds:
        fact = f"{url}: its accounts differ ({kinds})"
        yield failure(_ABOUT, fact, f"{_RUNBOOKS}/PandalBooksDiffer.md")
    elif at_s is not None:
        yield fine(_ABOUT, f"{url}: its accounts agreed {span(now_s - at_s)} ago")


def _number(told: Families, name: str, **labels: str) -> float | None:
    for sample in told.get(name, []):
        if all(sample.labels.get(label) == value for label, value in labels.items()):
            return sample.value
    return None
