"""Drain before delete, nothing twice, and the right replica goes or comes back."""

from autoscaler.plan import Action, Cordon, Release, SetCount, Uncordon, plan
from autoscaler.pool import EngineLoad, Phase, Replica, VariantState


def replica(name: str, num_running: int | None = 0, phase: Phase = Phase.READY) -> Replica:
    load = None if num_running is None else EngineLoad(num_running, 0, 0.1)
    since = 1000.0 if phase is Phase.DRAINING else None
    return Replica(name, phase, load, draining_since_s=since)


def released(name: str, to: int) -> Replica:
    return Replica(name, Phase.DRAINING, EngineLoad(0, 0, 0.0), 1000.0, released_to=to)


def planned(wanted: int, ordered: int, *found: Replica, now_s: float = 1010.0) -> list[Action]:
    variant = VariantState("v", ordered, found)
    return plan((variant,), {"v": wanted}, now_s=now_s, drain_deadline_s=600.0)


BUSY, IDLE, MID = replica("busy", 9), replica("idle", 0), replica("mid", 4)


def test_the_least_loaded_is_cordoned_and_nothing_is_deleted_yet() -> None:
    assert planned(2, 3, BUSY, IDLE, MID) == [Cordon("v", "idle")]


def test_one_that_does_not_tell_its_load_is_the_last_to_go() -> None:
    silent = replica("silent", None)
    assert planned(2, 3, BUSY, silent, MID) == [Cordon("v", "mid")]


def test_one_that_starts_goes_before_one_that_serves_and_at_once() -> None:
    starting = replica("new", None, Phase.STARTING)
    assert planned(2, 3, BUSY, starting, IDLE) == [Release("v", "new", 2), SetCount("v", 3, 2)]


def test_what_was_ordered_and_is_not_there_goes_before_anything_that_is() -> None:
    assert planned(2, 5, BUSY, MID) == [SetCount("v", 5, 2)]
    assert planned(1, 3, BUSY, MID) == [Cordon("v", "mid"), SetCount("v", 3, 2)]


def test_a_running_drain_is_not_started_again() -> None:
    draining = replica("d", 3, Phase.DRAINING)
    assert planned(2, 3, BUSY, MID, draining) == []


def test_a_drained_one_is_released_and_then_the_count_goes_down() -> None:
    drained = replica("d", 0, Phase.DRAINING)
    assert planned(2, 3, BUSY, MID, drained) == [Release("v", "d", 2), SetCount("v", 3, 2)]


def test_unknown_load_is_not_drained_before_the_deadline() -> None:
    silent = replica("d", None, Phase.DRAINING)
    assert planned(2, 3, BUSY, MID, silent) == []
    assert planned(2, 3, BUSY, MID, silent, now_s=1600.0)[-1] == SetCount("v", 3, 2)


def test_a_crash_after_the_release_goes_on_with_the_count() -> None:
    assert planned(2, 3, BUSY, MID, released("d", 2)) == [SetCount("v", 3, 2)]


def test_a_crash_after_the_count_does_nothing_more() -> None:
    assert planned(2, 2, BUSY, MID, released("d", 2)) == []


def test_when_another_one_was_deleted_the_drain_is_undone() -> None:
    assert planned(2, 2, BUSY, released("d", 2)) == [Uncordon("v", "d")]


def test_one_being_deleted_is_waited_for() -> None:
    gone = replica("d", 0, Phase.TERMINATING)
    assert planned(2, 2, BUSY, MID, gone) == []


def test_going_up_orders_in_place_of_one_that_drains_and_does_not_tell() -> None:
    silent, told = replica("silent", None, Phase.DRAINING), replica("told", 1, Phase.DRAINING)
    assert planned(3, 3, BUSY, silent, told) == [Uncordon("v", "told"), SetCount("v", 3, 4)]
    assert planned(2, 2, BUSY, silent) == [SetCount("v", 2, 3)]


def silent_survivor(to: int) -> Replica:
    return Replica("d", Phase.DRAINING, None, 1000.0, released_to=to)


def test_a_silent_one_that_was_released_and_not_deleted_is_replaced_and_then_ended() -> None:
    found = silent_survivor(2)
    assert planned(2, 2, BUSY, found, now_s=1600.0) == [SetCount("v", 2, 3)]
    starting = replica("new", None, Phase.STARTING)
    assert planned(2, 3, BUSY, found, starting, now_s=1700.0) == [], "the new one would go first"
    ended = planned(2, 3, BUSY, found, MID, now_s=1800.0)
    assert ended == [SetCount("v", 3, 2)], "it is released to that count already"
    assert planned(1, 2, BUSY, found, now_s=1600.0) == [Release("v", "d", 1), SetCount("v", 2, 1)]


def test_going_up_undoes_drains_before_it_orders() -> None:
    few, many = replica("few", 1, Phase.DRAINING), replica("many", 7, Phase.DRAINING)
    assert planned(2, 3, BUSY, few, many) == [Uncordon("v", "many")]
    assert planned(5, 3, BUSY, few, many) == [
        Uncordon("v", "many"),
        Uncordon("v", "few"),
        SetCount("v", 3, 5),
    ]
