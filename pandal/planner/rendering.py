"""A plan for people and for programs."""

import msgspec

from pandal.planner.deployment import Plan
from pandal.planner.figure import label, shown


def plan_text(plan: Plan, *, is_explained: bool) -> str:
    """A figure a line; explained, each with its formula and the numbers in it."""
    width = max(len(label(f)) for section in plan.sections for f in section.figures)
    lines = []
    for section in plan.sections:
        lines += ["", section.title]
        for figure in section.figures:
            lines.append(f"  {label(figure):<{width}}  {shown(figure)}")
            if is_explained:
                lines += [f"      {figure.formula}", f"      = {figure.numbers}"]
    lines += [f"beware: {warning}" for warning in plan.warnings]
    return "\n".join(lines[1:])


def plan_json(plan: Plan) -> str:
    serving = plan.question.serving
    document = {
        "type": "plan.v1",
        "model": serving.shape.name,
        "gpu": serving.gpu.name,
        "weight_precision": serving.weight_precision,
        "gpus_per_replica": plan.gpus_per_replica,
        "max_sequences": plan.max_sequences,
        "num_replicas": plan.num_replicas,
        "figures": [
            {
                "section": section.title,
                "name": figure.name,
                "value": figure.value,
                "unit": figure.unit,
                "formula": figure.formula,
                "numbers": figure.numbers,
            }
            for section in plan.sections
            for figure in section.figures
        ],
        "warnings": plan.warnings,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
