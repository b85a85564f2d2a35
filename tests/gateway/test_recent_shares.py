"""Who has lately had more than its share: told from what was had, and from who else wants some."""

from contracts.admission import ServiceClass
from contracts.names import tenant_id
from gateway.admission.recent_shares import RecentShares
from gateway.admission.share import Share


def share(name: str, weight: int = 1, service_class: ServiceClass = ServiceClass.STANDARD) -> Share:
    return Share(tenant_id(name), service_class, weight)


FLOOD, QUIET = share("flood"), share("quiet")


def had(recent: RecentShares, who: Share, num_tokens: int, now_s: float = 0.0) -> None:
    recent.asks(who, now_s)
    recent.charge(who, num_tokens, now_s)


def test_who_is_alone_may_have_everything() -> None:
    recent = RecentShares()
    had(recent, FLOOD, 100_000)
    assert not recent.is_over(FLOOD, 0.0)


def test_a_flood_is_over_its_share_and_the_quiet_one_is_not() -> None:
    recent = RecentShares()
    had(recent, FLOOD, 9_000)
    had(recent, QUIET, 1_000)
    assert recent.is_over(FLOOD, 0.0)
    assert not recent.is_over(QUIET, 0.0)


def test_equals_are_not_held_back() -> None:
    recent = RecentShares()
    had(recent, FLOOD, 1_100)
    had(recent, QUIET, 1_000)
    assert not recent.is_over(FLOOD, 0.0)
    assert not recent.is_over(QUIET, 0.0)


def test_a_weight_is_a_larger_share() -> None:
    recent, heavy = RecentShares(), share("heavy", weight=9)
    had(recent, heavy, 9_000)
    had(recent, QUIET, 1_000)
    assert not recent.is_over(heavy, 0.0)


def test_batch_wants_no_share() -> None:
    recent, batch = RecentShares(), share("batch", service_class=ServiceClass.BATCH)
    had(recent, FLOOD, 9_000)
    had(recent, batch, 1_000)
    assert not recent.is_over(FLOOD, 0.0)


def test_what_was_had_fades() -> None:
    recent = RecentShares()
    had(recent, FLOOD, 9_000)
    had(recent, QUIET, 1_000)
    recent.asks(FLOOD, 50.0)
    had(recent, QUIET, 1_000, 50.0)
    assert not recent.is_over(FLOOD, 50.0)
    assert recent.is_over(QUIET, 50.0)


def test_who_asks_no_more_wants_nothing() -> None:
    recent = RecentShares()
    had(recent, QUIET, 1_000)
    had(recent, FLOOD, 9_000, 61.0)
    assert not recent.is_over(FLOOD, 61.0)


def test_a_correction_gives_back() -> None:
    recent = RecentShares()
    had(recent, FLOOD, 9_000)
    had(recent, QUIET, 1_000)
    recent.correct(FLOOD, -8_000, 0.0, 0.0)
    assert not recent.is_over(FLOOD, 0.0)


def test_a_correction_that_comes_late_gives_back_what_has_not_faded() -> None:
    recent = RecentShares()
    had(recent, FLOOD, 9_000)
    had(recent, QUIET, 1_000)
    recent.correct(FLOOD, -8_000, 0.0, 10.0)
    assert not recent.is_over(FLOOD, 10.0)
    assert not recent.is_over(QUIET, 10.0)


def test_what_one_gets_back_is_not_taken_from_the_others() -> None:
    """It was forgotten meanwhile, and with it what it had."""
    recent, others = RecentShares(), [share(f"other-{number}") for number in range(9)]
    had(recent, FLOOD, 1_000_000)
    for other in others:
        had(recent, other, 1_000, 61.0)
    recent.asks(FLOOD, 61.0)
    recent.correct(FLOOD, -1_000_000, 0.0, 61.0)
    assert not any(recent.is_over(other, 61.0) for other in others)
