"""A misspelt variable is found, and its value never looked at."""

from typing import Literal

import pytest
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.environment import (
    BadSettings,
    nearest_variable,
    read_settings,
    unknown_variables,
    unread_variables,
    variable_of,
)

KNOWN = ("drain_timeout_s", "port", "quota_url")


@pytest.mark.parametrize(
    ("environ", "unknown"),
    [
        ({}, []),
        ({"GATEWAY_PORT": "1", "gateway_quota_url": "x", "PATH": "/bin"}, []),
        ({"GATEWAY_DRAIN_TIMEOUT": "1"}, ["GATEWAY_DRAIN_TIMEOUT"]),
        ({"gateway_prot": "1", "GATEWAY_": "", "GATEWAY": ""}, ["GATEWAY_", "gateway_prot"]),
        ({"MY_GATEWAY_PROT": "1", "REPLICA_PROT": "1"}, []),
    ],
)
def test_unknown_variables_are_those_of_the_prefix_that_no_setting_has(
    environ: dict[str, str], unknown: list[str]
) -> None:
    assert unknown_variables(environ, "GATEWAY_", KNOWN) == unknown


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("GATEWAY_DRAIN_TIMEOUT", "GATEWAY_DRAIN_TIMEOUT_S"),
        ("gateway_prot", "GATEWAY_PORT"),
        ("GATEWAY_QUOTA_URI", "GATEWAY_QUOTA_URL"),
    ],
)
def test_the_nearest_variable_is_the_one_that_was_meant(name: str, nearest: str) -> None:
    assert nearest_variable(name, "GATEWAY_", KNOWN) == nearest


def test_a_variable_like_no_other_has_no_nearest() -> None:
    assert nearest_variable("GATEWAY_X", "GATEWAY_", ()) is None
    assert nearest_variable("Z", "GATEWAY_", KNOWN) is None


def test_a_fault_is_named_by_its_variable() -> None:
    assert variable_of("GATEWAY_", ("replicas", 0, "url")) == "GATEWAY_REPLICAS.0.url"


def test_an_unread_variable_is_told_with_what_was_meant() -> None:
    assert unread_variables(["GATEWAY_PROT", "PATH"], "GATEWAY_", ["port"]) == {
        "GATEWAY_PROT": "there is no such setting; did you mean GATEWAY_PORT?"
    }


class Invalid(ValueError):
    """Tells faults as pydantic does."""

    def errors(self, *, include_input: bool, include_url: bool) -> list[dict[str, object]]:
        assert not include_input
        assert not include_url
        return [
            {"type": "less_than", "loc": ("port",), "msg": "Input should be less than 9"},
            {"type": "value_error", "loc": (), "ctx": {"error": ValueError("at odds")}},
        ]


@pytest.mark.parametrize(
    ("error", "faults"),
    [
        (Invalid(), {"GATEWAY_PORT": "expected less than 9", "GATEWAY_SETTINGS": "at odds"}),
        (ValueError("no JSON"), {"GATEWAY_": "no JSON"}),
    ],
    ids=["invalid", "undecodable"],
)
def test_all_faults_of_settings_are_told_at_once(error: ValueError, faults: dict[str, str]) -> None:
    def read() -> None:
        raise error

    with pytest.raises(BadSettings) as caught:
        read_settings(read, "GATEWAY_", {"GATEWAY_PROT": "no such setting"})
    assert caught.value.faults == {**faults, "GATEWAY_PROT": "no such setting"}


class Lists(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="LISTS_")

    folders: dict[str, str] = {}
    names: tuple[str, ...] = ()
    limits: dict[str, list[int]] = {}
    roles: dict[str, Literal["owner", "viewer"]] = {}


@pytest.mark.parametrize(
    ("variable", "form"),
    [
        ("LISTS_FOLDERS", '{"name": "value"}'),
        ("LISTS_NAMES", '["value"]'),
        ("LISTS_LIMITS", '{"name": [1]}'),
        ("LISTS_ROLES", '{"name": "owner"}'),
    ],
)
def test_what_is_no_json_is_told_by_variable_with_an_example(
    variable: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "law=/secret")
    with pytest.raises(BadSettings) as caught:
        read_settings(Lists, "LISTS_", {})
    assert caught.value.faults == {variable: f"expected JSON, such as {form}"}
    monkeypatch.setenv(variable, form)
    read_settings(Lists, "LISTS_", {})


def test_good_settings_with_a_variable_that_nothing_reads_are_refused() -> None:
    assert read_settings(lambda: 7, "GATEWAY_", {}) == 7
    with pytest.raises(BadSettings, match="GATEWAY_PROT"):
        read_settings(lambda: 7, "GATEWAY_", {"GATEWAY_PROT": "no such setting"})
