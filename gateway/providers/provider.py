"""One foreign provider: where it is, what it speaks, and the credential it is shown."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from contracts.replica_api import CACHE_SALT_FIELD, GATEWAY_OWNED_FIELDS
from gateway.api.context import Operation
from gateway.providers.anthropic_request import Untranslatable, messages_request
from gateway.providers.credential import Credential
from gateway.routing.replica import Replica

_OURS: Final = {CACHE_SALT_FIELD, *GATEWAY_OWNED_FIELDS}
_ANTHROPIC_PATH: Final = "/v1/messages"
_LIMITS: Final = ("max_tokens", "max_completion_tokens")


class Api(enum.StrEnum):
    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Provider:
    api: Api
    replica: Replica  # among those that are chosen from where it has models
    path: str  # before that of the operation, without its end
    headers: bytes = field(repr=False)  # whole lines, the credential's too: nothing of a tenant's
    credential: Credential
    models: Mapping[str, str]  # its own names, by those of our pools

    @property
    def name(self) -> str:
        return self.replica.name

    def path_of(self, operation: Operation) -> str:
        if self.api is Api.ANTHROPIC:
            return self.path + _ANTHROPIC_PATH
        return self.path + operation.path

    def request(self, operation: Operation, body: bytes, model: str, max_tokens: int) -> bytes:
        """Raises Untranslatable."""
        if self.api is Api.OPENAI:
            return with_model(body, model, max_tokens, without=_OURS)
        if operation is not Operation.CHAT_COMPLETIONS:
            raise Untranslatable("prompt")
        return messages_request(body, model, max_tokens)


def provider_headers(api: Api, api_key: str) -> bytes:
    if api is Api.ANTHROPIC:
        lines = f"x-api-key: {api_key}\r\nanthropic-version: 2023-06-01\r\n"
    else:
        lines = f"authorization: Bearer {api_key}\r\n"
    return f"{lines}content-type: application/json\r\n".encode()


def with_model(
    body: bytes, model: str, max_tokens: int, without: frozenset[str] | set[str] = frozenset()
) -> bytes:
    """The request, to another model and for no more tokens than that."""
    members: dict[str, object] = dict(msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
    members = {name: member for name, member in members.items() if name not in without}
    members["model"] = model
    asked = [name for name in _LIMITS if name in members] or ["max_tokens"]
    members |= dict.fromkeys(asked, max_tokens)
    return msgspec.json.encode(members)
