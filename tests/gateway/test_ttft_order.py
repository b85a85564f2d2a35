"""Which prompts go first, and what a first token teaches where they do not go as they came."""

import pytest

from tests.gateway.test_ttft_forecast import PER_TOKEN_S, STEP_S, load, taught


@pytest.mark.parametrize(
    ("num_cached", "later_s", "wait_s"),
    [(500, 0.1, 0.9), (300, 0.1, 3.9), (0, 0.1, 5.9), (500, 6.0, 5.0)],
    ids=["most", "not-more", "none", "too-late"],
)
def test_who_has_more_cached_goes_before_those_that_have_not_begun(
    num_cached: float, later_s: float, wait_s: float
) -> None:
    forecast, now_s = taught()
    forecast.report(load(), now_s)
    forecast.send(1_000, now_s, tells_first_token=True)
    forecast.send(2_000, now_s, tells_first_token=True)
    forecast.send(3_000, now_s, tells_first_token=True, num_cached=300)
    predicted = forecast.predict(100, now_s + later_s, num_cached)
    assert predicted is not None
    assert predicted.wait_s == pytest.approx(wait_s, rel=0.1)


def test_an_engine_of_another_make_keeps_the_order_in_which_prompts_came() -> None:
    forecast, now_s = taught()
    forecast.send(1_000, now_s, tells_first_token=True)
    forecast.send(2_000, now_s, tells_first_token=True)
    predicted = forecast.predict(100, now_s, num_cached=500)
    assert predicted is not None
    assert predicted.wait_s == pytest.approx(3.0, rel=0.1)


def test_what_is_prefilled_next_is_what_has_most_cached() -> None:
    forecast, now_s = taught()
    forecast.report(load(), now_s)
    first = forecast.send(500, now_s, tells_first_token=True)
    forecast.send(3_000, now_s, tells_first_token=True)
    forecast.send(200, now_s, tells_first_token=True, num_cached=300)
    forecast.first_token(first, now_s + 0.5)
    predicted = forecast.predict(100, now_s + 0.6, num_cached=400)
    assert predicted is not None
    assert predicted.wait_s == pytest.approx(0.1, rel=0.2), "half of the 200 is done"


def test_who_came_too_late_to_overtake_is_not_prefilled_next() -> None:
    forecast, now_s = taught()
    forecast.report(load(), now_s)
    first = forecast.send(9_000, now_s, tells_first_token=True)
    forecast.send(3_000, now_s, tells_first_token=True)
    forecast.send(200, now_s + 6.0, tells_first_token=True, num_cached=300)
    forecast.first_token(first, now_s + 9.0)
    predicted = forecast.predict(100, now_s + 10.0)
    assert predicted is not None
    assert predicted.wait_s == pytest.approx(2.2, rel=0.1), "1.0 of the 3.0 s is over"


def test_a_lesson_is_what_was_prefilled_meanwhile() -> None:
    """Each third overtakes the second: that was ahead of it when it was sent, and took no time."""
    forecast, now_s = taught()
    for _ in range(60):
        now_s += 10.0
        first = forecast.send(500, now_s, tells_first_token=True)
        second = forecast.send(2_000, now_s + 0.02, tells_first_token=True)
        third = forecast.send(100, now_s + 0.04, tells_first_token=True)
        for visit, first_s in ((first, 0.5), (third, 0.6), (second, 2.6)):
            forecast.first_token(visit, now_s + first_s + STEP_S)
            forecast.end(visit, now_s + first_s + 1.0)
    predicted = forecast.predict(1_000, now_s + 10.0)
    assert predicted is not None
    assert predicted.ttft_s == pytest.approx(1_000 * PER_TOKEN_S + STEP_S, rel=0.1)


def test_what_was_given_up_before_it_began_is_part_of_no_lesson() -> None:
    forecast, now_s = taught()
    for _ in range(60):
        now_s += 10.0
        first = forecast.send(500, now_s, tells_first_token=True)
        given_up = forecast.send(5_000, now_s + 0.02, tells_first_token=True)
        last = forecast.send(100, now_s + 0.04, tells_first_token=True)
        forecast.end(given_up, now_s + 0.1)
        for visit, first_s in ((first, 0.5), (last, 0.6)):
            forecast.first_token(visit, now_s + first_s + STEP_S)
            forecast.end(visit, now_s + first_s + 1.0)
    predicted = forecast.predict(1_000, now_s + 10.0)
    assert predicted is not None
    assert predicted.ttft_s == pytest.approx(1_000 * PER_TOKEN_S + STEP_S, rel=0.1)


def test_behind_a_document_that_is_through_the_next_prompt_has_begun() -> None:
    forecast, now_s = taught()
    forecast.report(load(), now_s)
    forecast.send(1_000, now_s, tells_first_token=False)
    forecast.send(3_000, now_s, tells_first_token=True)
    predicted = forecast.predict(100, now_s + 3.0)
    assert predicted is not None
    assert predicted.wait_s == pytest.approx(1.0, rel=0.3), "2.0 of the 3.0 s are over"
