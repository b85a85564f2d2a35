"""What is sent: conversations, each of one turn or several.

A workload is a pure function of its seed and a conversation's number, so two runs send the same
prompts whatever their rate.  In a conversation of several turns the user's next message comes a
pause after the answer, as a reader's would; the answers that later turns quote are made up from
the seed, so that the prompts do not depend on the server.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from pandal.bench.text import words

_QUESTION_TOKENS = 24
_LONGEST_FACTOR = 8  # of a lognormal length's median: a tail, but one that ends


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Turn:
    messages: Sequence[Message]  # the whole prompt, history included
    max_tokens: int
    pause_s: float = 0.0  # after the answer to the turn before


@dataclass(frozen=True, slots=True)
class Conversation:
    turns: Sequence[Turn]
    tenant: str | None = None  # a trace may say; else tenants are drawn by weight


class Workload(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def turns_per_conversation(self) -> int: ...

    @property
    def tenant_names(self) -> frozenset[str]:
        """That conversations name themselves."""
        ...

    def conversation(self, number: int, seed: int) -> Conversation: ...


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal around a median; ``sigma`` zero makes every length the median."""

    median_tokens: int
    sigma: float = 0.0

    def draw(self, rng: random.Random) -> int:
        if self.sigma == 0:
            return self.median_tokens
        factor = math.exp(min(rng.gauss(0, self.sigma), math.log(_LONGEST_FACTOR)))
        return max(1, min(round(self.median_tokens * factor), self.median_tokens * _LONGEST_FACTOR))


class Zipf:
    """Ranks 0 to ``size`` - 1, the k-th with weight k ** -exponent; exponent zero is even."""

    def __init__(self, size: int, exponent: float) -> None:
        self._cumulative = list(accumulate((k + 1) ** -exponent for k in range(size)))

    def draw(self, rng: random.Random) -> int:
        ranks = range(len(self._cumulative))
        return rng.choices(ranks, cum_weights=self._cumulative)[0]


@dataclass(frozen=True, slots=True)
class Single:
    """One prompt, one answer, nothing shared: fixed, lognormal and reasoning workloads."""

    name: str
    prompt: Lengths
    output: Lengths
    turns_per_conversation: int = 1
    tenant_names: frozenset[str] = frozenset()

    def conversation(self, number: int, seed: int) -> Conversation:
        rng = _rng(seed, self.name, number)
        prompt = words(self.prompt.draw(rng), seed, self.name, "prompt", number)
        return Conversation((Turn((Message("user", prompt),), self.output.draw(rng)),))


@dataclass(frozen=True, slots=True)
class Chat:
    """Groups that share a system prompt; each conversation grows turn by turn."""

    groups: Zipf
    turns_per_conversation: int
    system_tokens: int
    prompt: Lengths
    output: Lengths
    mean_pause_s: float
    name: str = "chat"
    tenant_names: frozenset[str] = frozenset()

    def conversation(self, number: int, seed: int) -> Conversation:
        rng = _rng(seed, self.name, number)
        group = self.groups.draw(rng)
        history = [Message("system", words(self.system_tokens, seed, "system", group))]
        turns: list[Turn] = []
        for index in range(self.turns_per_conversation):
            place = (seed, self.name, number, index)
            asked = words(self.prompt.draw(rng), *place, "user")
            history.append(Message("user", asked))
            max_tokens = self.output.draw(rng)
            turns.append(Turn(tuple(history), max_tokens, _pause_s(rng, index, self.mean_pause_s)))
            history.append(Message("assistant", words(max_tokens, *place, "assistant")))
        return Conversation(tuple(turns))


@dataclass(frozen=True, slots=True)
class Rag:
    """A shared instruction, documents drawn from one library by popularity, and a question."""

    documents: Zipf
    documents_per_prompt: int
    document_tokens: int
    system_tokens: int
    output: Lengths
    name: str = "rag"
    turns_per_conversation: int = 1
    tenant_names: frozenset[str] = frozenset()

    def conversation(self, number: int, seed: int) -> Conversation:
        rng = _rng(seed, self.name, number)
        chosen = [self.documents.draw(rng) for _ in range(self.documents_per_prompt)]
        library = [words(self.document_tokens, seed, "document", which) for which in chosen]
        question = words(_QUESTION_TOKENS, seed, self.name, "question", number)
        system = Message("system", words(self.system_tokens, seed, "system", 0))
        user = Message("user", "\n\n".join((*library, question)))
        return Conversation((Turn((system, user), self.output.draw(rng)),))


def _pause_s(rng: random.Random, index: int, mean_s: float) -> float:
    if index == 0 or mean_s == 0:
        return 0.0
    return rng.expovariate(1 / mean_s)


def _rng(*seed: object) -> random.Random:
    return random.Random("/".join(map(str, seed)))
