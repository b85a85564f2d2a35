"""docs/api.md tells what to do about each refusal a client can meet."""

from collections.abc import Iterator
from pathlib import Path

from gateway import errors
from gateway.errors import GatewayError

_API = Path(__file__).parents[2] / "docs" / "api.md"
# The admin API's alone; its own document describes them.
_OPERATORS = {
    errors.AdminUnauthorized,
    errors.PolicyAbsent,
    errors.PolicyConflict,
    errors.PolicyRefused,
    errors.PolicyStoreUnavailable,
    errors.PreconditionRequired,
    errors.RoleMissing,
    errors.UnknownName,
    errors.UnknownPolicyVersion,
}


def test_every_code_is_in_the_table() -> None:
    table = _API.read_text().partition("| status | code |")[2]
    codes = {kind.code for kind in _kinds(GatewayError) if kind not in _OPERATORS and kind.code}
    assert [code for code in sorted(codes) if f"`{code}`" not in table] == []


def _kinds(root: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)
