"""A misspelt variable is found, and its value never looked at."""

import pytest

from contracts.environment import (
    nearest_variable,
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
