"""Values of labels in Prometheus' text format.  Of rules: a model's name may hold anything."""

from typing import Final

from contracts.quota import QuotaRule
from gateway.admission.quota_plan import rule_in_words

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def rule_label(rule: QuotaRule) -> str:
    return (rule_in_words(rule) or "all requests").translate(_ESCAPES)
