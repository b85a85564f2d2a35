"""Every reason has its sentence, and the figures that the sentence names."""

from autoscaler.decision import Code, Decision, Memory, Reason
from autoscaler.explain import explained, sentence
from tests.autoscaler.pools import Scene


def test_a_decision_is_told_with_its_numbers() -> None:
    scene = Scene(ordered=4)
    scene.obey(2.0, num_looks=50)
    for _ in range(3):
        decision = scene.look(12.0)
    lines = explained("chat", decision)
    assert lines[0] == f"chat: h200 {decision.num_wanted}"
    assert any(line.startswith("demand_up: ") and "tokens/s are missing" in line for line in lines)
    assert any("expected in 195 s" in line for line in lines)


def test_every_code_has_a_sentence() -> None:
    figures = dict.fromkeys(
        (
            "now_tokens_per_s", "ahead_tokens_per_s", "chance_tokens_per_s", "floor", "ceiling",
            "backlog_tokens_per_s", "headroom_tokens_per_s", "horizon_s", "missing_tokens_per_s",
            "num_waiting", "for_s", "kept_tokens_per_s", "known_s", "since_s", "num_in_flight",
            "num_unknown", "num_replicas", "held_tokens_per_s", "left_s",
        ),
        1.0,
    )  # fmt: skip
    reasons = tuple(Reason(code, figures) for code in Code)
    assert all(sentence(reason) for reason in reasons)
    assert len(explained("p", Decision(0.0, {"a": 1}, reasons, Memory(), Memory()))) == 1 + len(
        Code
    )
