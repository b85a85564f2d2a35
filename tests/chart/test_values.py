"""The chart's values: made of their model, and each setting of a service among them."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel, Field, SecretStr
from pydantic_settings import BaseSettings

from autoscaler.settings import Settings as AutoscalerSettings
from billing.settings import Settings as BillingSettings
from gateway.admin.settings import Settings as AdminSettings
from gateway.settings import Settings as GatewaySettings
from pandal.chart import control_values, gateway_values, pool_values
from pandal.chart.__main__ import CHART, generated_files
from pandal.chart.settings_fields import reasons_of
from replica.settings import Settings as ReplicaSettings

SERVICES: list[tuple[type[BaseSettings], dict[str, str], Any, str]] = [
    (GatewaySettings, gateway_values.MANAGED, gateway_values.GatewaySettings, "gateway"),
    (AdminSettings, gateway_values.ADMIN_MANAGED, gateway_values.AdminSettings, "admin"),
    (ReplicaSettings, pool_values.MANAGED, pool_values.ReplicaSettings, "poolDefaults"),
    (
        AutoscalerSettings,
        control_values.AUTOSCALER_MANAGED,
        control_values.AutoscalerSettings,
        "autoscaler",
    ),
    (BillingSettings, control_values.BILLING_MANAGED, control_values.BillingSettings, "billing"),
]
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.mark.parametrize("name", sorted(generated_files()))
def test_what_is_generated_is_as_it_would_be_now(name: str) -> None:
    assert (CHART / name).read_text() == generated_files()[name], "run `make chart`"


@pytest.mark.parametrize(("settings", "managed", "group", "place"), SERVICES)
def test_every_setting_has_a_place_among_the_values(
    settings: type[BaseSettings], managed: dict[str, str], group: Any, place: str
) -> None:
    assert set(group.model_fields) | set(managed) == set(settings.model_fields)
    assert not set(group.model_fields) & set(managed)
    shown = VALUES[place]["settings"]
    assert set(shown) == {field.alias for field in group.model_fields.values()}
    for name, field in group.model_fields.items():
        default = settings.model_fields[name].default
        spelled = list(default) if isinstance(default, tuple) else default
        assert getattr(spelled, "value", spelled) == shown[field.alias], name


@pytest.mark.parametrize(("settings", "managed", "group", "place"), SERVICES)
def test_what_the_chart_decides_has_the_place_it_says(
    settings: type[BaseSettings], managed: dict[str, str], group: Any, place: str
) -> None:
    for words in managed.values():
        for path in (word.strip(",") for word in words.split() if "." in word):
            assert _at(path) is not None or path in {"pools[].modelPath"}, path


def _at(path: str) -> Any:
    found: Any = VALUES
    for name in path.replace("pools[]", "poolDefaults").split("."):
        if (name == "model") and found is VALUES["poolDefaults"]:
            return VALUES["pools"][0]["model"]
        found = found[name]
    return found


def test_a_settings_reason_is_its_comment() -> None:
    reasons = reasons_of(ReplicaSettings)
    assert reasons["model"] == "small enough for any laptop, Apache-2.0"
    assert reasons["precision"].startswith("The compiled step only.")
    assert reasons["max_model_len"] == "tokens; null: the model's, if the cache holds it"


class Patterned(BaseSettings):
    # An address.
    url: str = Field(pattern=r"^[^#]*$")  # no fragment


def test_a_hash_inside_a_text_begins_no_comment() -> None:
    assert reasons_of(Patterned) == {"url": "An address. no fragment"}


def test_no_secret_is_a_value() -> None:
    """A settings field that holds a secret, however deep, is never one of the free settings."""
    for settings, managed, _, _ in SERVICES:
        for name, field in settings.model_fields.items():
            assert name in managed or not holds_a_secret(field.annotation), name


def holds_a_secret(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return any(holds_a_secret(field.annotation) for field in kind.model_fields.values())
    return kind is SecretStr or any(map(holds_a_secret, get_args(kind)))


def test_the_chart_has_the_products_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project
