"""What a request may cost, in tokens: its prompt and its answers, before either is counted."""

from contracts.admission import AdmissionPolicy, CompletionBound
from contracts.names import TenantId
from gateway.admission.answer_lengths import AnswerLengths
from gateway.admission.estimate import TokenEstimator
from gateway.prompt import Prompt


class CostModel:
    """Learns from every settled request; constant time and bounded memory."""

    def __init__(self, prompt_quantile: float) -> None:
        self._estimator = TokenEstimator(prompt_quantile)
        self._answers = AnswerLengths()

    def prompt_tokens(self, model: str, prompt: Prompt) -> int:
        return self._estimator.estimate(model, prompt)

    def likely_prompt_tokens(self, model: str, prompt: Prompt) -> float:
        """Not to be reserved: as likely too many as too few."""
        return self._estimator.likely(model, prompt)

    def answer_tokens(
        self, tenant: TenantId, policy: AdmissionPolicy, model: str, at_most: int
    ) -> int:
        """To be reserved for one answer of ``at_most`` tokens."""
        if policy.completion_bound is CompletionBound.ASKED:
            return at_most
        return self._answers.expected_tokens(tenant, model, at_most)

    def learn_prompt(self, model: str, prompt: Prompt, num_tokens: int) -> None:
        self._estimator.learn(model, prompt, num_tokens)

    def learn_answer(
        self, tenant: TenantId, model: str, num_tokens: float, *, at_most: float
    ) -> None:
        """As ``AnswerLengths.learn``."""
        self._answers.learn(tenant, model, num_tokens, at_most=at_most)
