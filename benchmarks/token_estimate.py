"""How far prompt estimates are from what a real tokenizer counts, and what they cost.

    python -m benchmarks.token_estimate [--chats 4000]

Half of the chats are learned from, one after the other as requests settle; the other half, of
another seed, is judged.  The tokenizer is the small model's own, with its chat template.  An error
is (estimate - count) / count: above zero is too much, and comes back at settlement.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from benchmarks.prompt_corpus import Chat, chats, kinds
from gateway.admission.estimate import TokenEstimator, text_prompt
from gateway.admission.hf_tokenizer import load_tokenizer as load_exact
from gateway.admission.prompt_parts import is_system, split, text_of
from gateway.admission.template_overhead import TemplateOverhead
from gateway.api.context import Operation
from gateway.prompt import CountedPrompt, TemplateForm
from replica.model import store
from replica.model.tokenizer_loader import load_tokenizer
from replica.settings import default_cache_dir

MODEL = "SmolLM2-135M-Instruct"
QUANTILE = 0.95


def percentile(values: Sequence[float], ratio: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(ratio * len(ordered)) - 1)]


def row(name: str, errors: Sequence[float]) -> str:
    shown = [f"{100 * percentile(errors, ratio):8.1f}" for ratio in (0.05, 0.5, 0.95)]
    sizes = [f"{100 * percentile([abs(e) for e in errors], ratio):8.1f}" for ratio in (0.5, 0.95)]
    low = sum(error < 0 for error in errors) / len(errors)
    return f"  {name:<12}{''.join(shown)} |{''.join(sizes)} |{100 * low:7.1f}"


def report(title: str, judged: Sequence[tuple[Chat, int]], estimate: Callable[[Chat], int]) -> None:
    errors = [(chat.kind, estimate(chat) / count - 1) for chat, count in judged]
    print(f"\n{title}\n  {'':<12}  p5 %   p50 %   p95 % | abs p50     p95 |  low %")
    print(row("all", [error for _, error in errors]))
    for kind in kinds():
        print(row(kind, [error for name, error in errors if name == kind]))


def cost_us(call: Callable[[Chat], object], some: Sequence[Chat]) -> float:
    """Of one call, the best of five rounds."""
    rounds = []
    for _ in range(5):
        began_s = time.perf_counter()
        for chat in some:
            call(chat)
        rounds.append((time.perf_counter() - began_s) / len(some))
    return min(rounds) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chats", type=int, default=4_000)
    num_each = parser.parse_args().chats // 2
    path = store.resolve(MODEL, default_cache_dir(), lambda ratio: None)
    tokenizer = load_tokenizer(path, lambda: datetime(2026, 1, 1, tzinfo=UTC))

    def count(chat: Chat) -> int:
        return len(tokenizer.encode(tokenizer.render_chat(chat.messages)))

    lessons = [(chat, count(chat)) for chat in chats(num_each, seed=1)]
    judged = [(chat, count(chat)) for chat in chats(num_each, seed=2)]
    estimator = TokenEstimator(QUANTILE)

    def estimated(chat: Chat) -> int:
        return estimator.estimate(MODEL, text_prompt(chat.json))

    report("a token for three bytes", judged, lambda chat: -(-len(chat.json) // 3) + 8)
    report("learned: nothing yet", judged, estimated)
    for chat, num_tokens in lessons:
        estimator.learn(MODEL, text_prompt(chat.json), num_tokens)
    report(f"learned from {len(lessons)} chats, p{100 * QUANTILE:.0f}", judged, estimated)

    exact, overhead = load_exact(tokenizer.to_json()), TemplateOverhead()

    def counted(chat: Chat) -> CountedPrompt:
        parts = split(chat.json)
        form = TemplateForm(Operation.CHAT_COMPLETIONS, is_system(parts[0]), has_tools=False)
        return CountedPrompt(sum(exact.num_tokens(text_of(p)) for p in parts), len(parts), form)

    for chat, num_tokens in lessons:
        overhead.learn(MODEL, counted(chat), num_tokens)

    def exactly(chat: Chat) -> int:
        prompt = counted(chat)
        return prompt.num_tokens + overhead.tokens(MODEL, prompt)

    report("exact: the tokenizer, and what the template adds", judged, exactly)

    prepared = [(text, text_prompt(text)) for text in (chat.json for chat, _ in judged[:500])]
    for name, call in (
        ("estimate", lambda pair: estimator.estimate(MODEL, text_prompt(pair[0]))),
        ("learn", lambda pair: estimator.learn(MODEL, pair[1], 100)),
    ):
        print(f"\n{name}: {cost_us(call, prepared):.2f} us", end="")
    print(f"\ntokenizer: {cost_us(count, [chat for chat, _ in judged[:100]]):.0f} us a chat")


if __name__ == "__main__":
    main()
