"""``pandal plan --values`` is a values file, to which is told where the model lies."""

from pathlib import Path

import pytest

from tests.chart import manifests
from tests.pandal.command_line import pandal
from tests.support.helm import Helm

PLANS = [
    ("--model", "Llama-3-70B", "--gpu", "h100", "--precision", "fp8", "--kv-precision", "fp8"),
    ("--model", "Llama-3.1-8B", "--gpu", "L4", "--usd-per-gpu-hour", "0.7"),
]


@pytest.mark.parametrize("options", PLANS, ids=lambda options: options[1])
def test_a_plan_is_rendered_as_it_is(
    helm3: Helm, helm4: Helm, tmp_path: Path, options: tuple[str, ...]
) -> None:
    planned = pandal("plan", *options, "--values")
    assert planned.returncode == 0, planned.stderr
    path = tmp_path / "plan.yaml"
    path.write_text(planned.stdout)
    assert "modelPath" in helm4.refusal([path]), "a plan does not know where the model lies"
    where = ("--set", "poolDefaults.modelPath=hub/model")
    helm3.template([path], *where)
    objects = helm4.template([path], *where)
    (deployment,) = (
        o
        for o in manifests.of_kind(objects, "Deployment")
        if o["metadata"]["labels"]["app.kubernetes.io/component"] == "replica"
    )
    (engine,) = deployment["spec"]["template"]["spec"]["containers"]
    assert int(engine["resources"]["limits"]["nvidia.com/gpu"]) >= 1
    arguments = engine["args"]
    assert arguments[arguments.index("--served-model-name") + 1] == options[1]
    assert ("fp8" in arguments) is ("fp8" in options)
