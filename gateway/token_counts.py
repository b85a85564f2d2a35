"""Tokens by class; together they are all that were used."""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.metering import Usage


@dataclass(slots=True)
class TokenCounts:
    num_input: int = 0  # without the cached ones
    num_cached: int = 0
    num_output: int = 0

    @classmethod
    def of(cls, usages: Iterable[Usage]) -> "TokenCounts":
        prompt = cached = output = 0
        for usage in usages:
            prompt += usage.prompt_tokens
            cached += usage.cached_prompt_tokens
            output += usage.completion_tokens
        return cls(prompt - cached, cached, output)

    def add(self, other: "TokenCounts") -> None:
        self.num_input += other.num_input
        self.num_cached += other.num_cached
        self.num_output += other.num_output

    def by_class(self) -> dict[str, int]:
        return {"input": self.num_input, "cached": self.num_cached, "output": self.num_output}
