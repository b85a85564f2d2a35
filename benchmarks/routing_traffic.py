"""Traffic for the simulated fleet: who asks for what, and when."""

import random
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from benchmarks.routing_fleet import BLOCK_TOKENS
from gateway.prompt import PromptText
from gateway.routing.text_chain import BOUNDARIES_BYTES

BYTES_PER_TOKEN = 4
_BOUNDARY_BLOCKS = [end // (BLOCK_TOKENS * BYTES_PER_TOKEN) for end in BOUNDARIES_BYTES]
_SALT = b"s" * 32  # of the one tenant that they all belong to
_MASK = (1 << 64) - 1
_LEADING_TOKENS = 256  # below that a system prompt is no key of its own, as in the gateway

Segment = tuple[object, int]  # what it says, and how many tokens that has


@dataclass(frozen=True, slots=True)
class Prompt:
    blocks: Sequence[int]
    num_tokens: int
    key: bytes  # where on the ring, as the gateway would see it
    conversation: bytes

    @property
    def text(self) -> PromptText:
        blocks = self.blocks
        chain = [blocks[n - 1] for n in _BOUNDARY_BLOCKS[: bisect(_BOUNDARY_BLOCKS, len(blocks))]]
        return PromptText(chain, self.num_tokens * BYTES_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class Request:
    prompt: Prompt
    output_tokens: int
    then: Callable[[], "tuple[float, Request] | None"] = field(default=lambda: None)
    """What its client does when it has the answer: waits so long, and asks that."""


def prompt_of(leading: Sequence[Segment], rest: Sequence[Segment]) -> Prompt:
    """``rest`` begins with the first question."""
    blocks: list[int] = []
    link, filled = 0, 0
    for name, num_tokens in (*leading, *rest):
        start = 0
        while start < num_tokens:
            taken = min(BLOCK_TOKENS - filled, num_tokens - start)
            link = hash((link, name, start, taken)) & _MASK
            filled += taken
            start += taken
            if filled == BLOCK_TOKENS:
                blocks.append(link)
                filled = 0
    num_leading = sum(tokens for _, tokens in leading)
    opening = _SALT + b"m" + repr((leading, rest[0][0])).encode()
    is_long = num_leading >= _LEADING_TOKENS
    key = _SALT + b"l" + repr(leading).encode() if is_long else opening
    return Prompt(blocks, num_leading + sum(tokens for _, tokens in rest), key, opening)


class Zipf:
    """Draws ranks; the first is the most popular."""

    def __init__(self, source: random.Random, num: int, exponent: float) -> None:
        self._source = source
        self._sums = list(accumulate(1.0 / (rank + 1) ** exponent for rank in range(num)))

    def __call__(self) -> int:
        return bisect(self._sums, self._source.random() * self._sums[-1])


Arrivals = Iterator[tuple[float, Request]]


def _poisson(source: random.Random, per_s: float, until_s: float) -> Iterator[float]:
    at_s = source.expovariate(per_s)
    while at_s < until_s:
        yield at_s
        at_s += source.expovariate(per_s)


def _output(source: random.Random) -> int:
    return 1 + min(160, int(source.expovariate(1 / 40)))


def multi_turn(source: random.Random, until_s: float, load: float) -> Arrivals:
    """Conversations of many tenants, each tenant with a short system prompt."""
    for number, at_s in enumerate(_poisson(source, 1.1 * load, until_s)):
        leading = [(f"tenant-{source.randrange(40)}", 160)]
        yield at_s, _turn(source, leading, [], f"conversation-{number}", 1 + source.randrange(8))


def _turn(
    source: random.Random, leading: list[Segment], said: list[Segment], name: str, num_left: int
) -> Request:
    asked = [*said, (f"{name}-asks-{len(said)}", 80 + source.randrange(160))]
    output = _output(source)

    def then() -> tuple[float, Request] | None:
        if num_left == 1:
            return None
        so_far = [*asked, (f"{name}-answer-{len(asked)}", output)]
        return source.expovariate(1 / 8), _turn(source, leading, so_far, name, num_left - 1)

    return Request(prompt_of(leading, asked), output, then)


def shared_prompts(source: random.Random, until_s: float, load: float) -> Arrivals:
    """Long system prompts, some far more popular, each question once."""
    popular = Zipf(source, 60, 0.9)
    for number, at_s in enumerate(_poisson(source, 9.0 * load, until_s)):
        leading = [(f"system-{popular()}", 1_280)]
        question = [(f"question-{number}", 40 + source.randrange(80))]
        yield at_s, Request(prompt_of(leading, question), _output(source))


def retrieval(source: random.Random, until_s: float, load: float) -> Arrivals:
    """A document, then a question about it: documents are shared, pairs are not."""
    popular = Zipf(source, 400, 0.9)
    for number, at_s in enumerate(_poisson(source, 6.0 * load, until_s)):
        document = (f"document-{popular()}", 960)
        question = (f"question-{number}", 30 + source.randrange(60))
        prompt = prompt_of([("rag", 64)], [document, question])
        yield at_s, Request(prompt, _output(source))


def zipf(source: random.Random, until_s: float, load: float) -> Arrivals:
    """A few prefixes have most of the traffic, nearly as much as the fleet can do."""
    popular = Zipf(source, 200, 1.2)
    for number, at_s in enumerate(_poisson(source, 24.0 * load, until_s)):
        leading = [(f"prefix-{popular()}", 640)]
        question = [(f"question-{number}", 60 + source.randrange(120))]
        yield at_s, Request(prompt_of(leading, question), _output(source))


def uniform(source: random.Random, until_s: float, load: float) -> Arrivals:
    """Nothing is shared: the case in which affinity can only cost."""
    for number, at_s in enumerate(_poisson(source, 6.5 * load, until_s)):
        prompt = prompt_of([], [(f"prompt-{number}", 300 + source.randrange(400))])
        yield at_s, Request(prompt, _output(source))


MIXES = {
    "multi-turn": multi_turn,
    "shared prompts": shared_prompts,
    "retrieval": retrieval,
    "zipf": zipf,
    "uniform": uniform,
}
