"""How many tokens a chat template adds, learned from what engines counted.

Which tokens a template adds depends on how many messages there are, and on the form of the prompt:
whether it must put in a system message of its own, or write down tools.  The latest of each form
and length stands; it is the same every time, where nothing else differs.
"""

from typing import Final

from gateway.prompt import CountedPrompt, TemplateForm

_MAX_PARTS: Final = 64  # beyond that, by the part
_COLD_TOKENS: Final = 16  # begin, the assistant's cue, and a system message of the template's own
_COLD_PER_PART: Final = 8
_MAX_MODELS: Final = 256

_Learned = dict[int, int]  # by how many parts


class TemplateOverhead:
    def __init__(self) -> None:
        self._models: dict[str, dict[TemplateForm, _Learned]] = {}

    def tokens(self, model: str, prompt: CountedPrompt) -> int:
        known = self._models.get(model, {}).get(prompt.form, {})
        nearest = max((n for n in known if n <= prompt.num_parts), default=None)
        if nearest is None:
            return _COLD_TOKENS + _COLD_PER_PART * prompt.num_parts
        return known[nearest] + _per_part(known) * (prompt.num_parts - nearest)

    def learn(self, model: str, prompt: CountedPrompt, num_tokens: int) -> None:
        """``num_tokens``: the engine's count of the whole prompt."""
        added = num_tokens - prompt.num_tokens
        if added < 0 or prompt.num_parts > _MAX_PARTS:
            return
        if model not in self._models and len(self._models) >= _MAX_MODELS:
            self._models.clear()
        forms = self._models.setdefault(model, {})
        forms.setdefault(prompt.form, {})[prompt.num_parts] = added


def _per_part(known: _Learned) -> int:
    if len(known) < 2:
        return _COLD_PER_PART
    low, high = min(known), max(known)
    return max(0, -(-(known[high] - known[low]) // (high - low)))
