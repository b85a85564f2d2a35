"""What a request may cost, in tokens: its prompt and its answers, before either is counted."""

from contracts.names import TenantId
from gateway.admission.answer_lengths import AnswerLengths
from gateway.admission.estimate import TokenEstimator
from gateway.prompt import Prompt


class CostModel:
    """Learns from every settled request; constant time and bounded memory."""

    def __init__(self, prompt_quantile: float) -> None:
        self._estimator = TokenEstimator(prompt_quantile)
        self._answers = AnswerLengths()
        self.prompt_tokens = self._estimator.estimate
        self.answer_tokens = self._answers.expected_tokens  # for policies that allow debt
        self.likely_prompt_tokens = self._estimator.likely
        """Not to be reserved: as likely too many as too few."""

    def learn_prompt(self, model: str, prompt: Prompt, num_tokens: int) -> None:
        self._estimator.learn(model, prompt, num_tokens)

    def learn_answer(
        self, tenant: TenantId, model: str, num_tokens: float, *, at_most: float
    ) -> None:
        """As ``AnswerLengths.learn``."""
        self._answers.learn(tenant, model, num_tokens, at_most=at_most)
