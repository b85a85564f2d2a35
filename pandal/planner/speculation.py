"""What a draft of k tokens gains.

Source: Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding",
2023, equation 1 and theorem 3.8.
"""

from pandal.planner.figure import Figure, Unit


def tokens_per_pass(acceptance_ratio: float, draft_tokens: int) -> Figure:
    """Expected, of one pass of the large model; ``acceptance_ratio`` is 0 to 1."""
    if acceptance_ratio >= 1:
        value, numbers = float(draft_tokens + 1), f"{draft_tokens} + 1"
    else:
        value = (1 - acceptance_ratio ** (draft_tokens + 1)) / (1 - acceptance_ratio)
        numbers = f"(1 - {acceptance_ratio:g} ** ({draft_tokens} + 1)) / (1 - {acceptance_ratio:g})"
    return Figure(
        "tokens_per_pass",
        value,
        Unit.TOKENS,
        "(1 - acceptance ^ (k + 1)) / (1 - acceptance)",
        numbers,
    )


def speedup(tokens_per_pass: float, *, draft_tokens: int, draft_cost_ratio: float) -> Figure:
    """While memory is the limit: ``draft_cost_ratio`` is a draft step over a step of the model."""
    return Figure(
        "speculation_speedup",
        tokens_per_pass / (1 + draft_tokens * draft_cost_ratio),
        Unit.RATIO,
        "tokens per pass / (1 + k x cost of a draft step)",
        f"{tokens_per_pass:.6g} / (1 + {draft_tokens} * {draft_cost_ratio:g})",
    )
