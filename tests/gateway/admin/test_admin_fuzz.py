"""The admin API against what its own OpenAPI document allows and forbids."""

from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.gateway.admin.admin_process import TOKENS, AdminProcess

# Not that all data of the right shape is accepted: a tenant that is not there has the right shape.
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    negative_data_rejection,
    ignored_auth,
]


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminProcess]:
    folder = tmp_path_factory.mktemp("fuzzed")
    process = AdminProcess(folder, ADMIN_POLICY_FILE=str(folder / "policies.json"))
    tenants = [{"tenant_id": "acme", "tier": "gold"}]
    process.ask("PUT", "/policy", {"tenants": tenants}, headers={"if-match": "*"})
    process.ask("POST", "/tenants/acme/keys", {})
    yield process
    assert process.stop() == 0


@pytest.fixture(scope="module")
def api(admin: AdminProcess) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"http://127.0.0.1:{admin.port}/openapi.json")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_every_answer_is_one_that_is_documented(
    api: schemathesis.BaseSchema, mode: GenerationMode
) -> None:
    operations = [result.ok() for result in api.get_all_operations()]
    assert len(operations) == 14
    with requests.Session() as session:  # else each case leaves a connection to the collector
        for operation in operations:
            fuzz(operation, mode, session)


def fuzz(
    operation: schemathesis.APIOperation, mode: GenerationMode, session: requests.Session
) -> None:
    headers = {"authorization": f"Bearer {TOKENS['owner']}"}

    @settings(
        max_examples=3,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def answers_as_documented(case: schemathesis.Case) -> None:
        case.call_and_validate(headers=headers, checks=CHECKS, session=session)

    try:
        answers_as_documented()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # nothing in it can be wrong
