"""OpenAI body -> ``InferenceRequest``: checked, measured, and rewritten for the replica."""

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

import msgspec

from contracts.policy import Limits
from contracts.replica_api import CACHE_SALT_FIELD, GATEWAY_OWNED_FIELDS
from gateway.admission.estimate import estimate_prompt_tokens, num_prompts
from gateway.api.affinity import chat_affinity_key, prompt_affinity_key
from gateway.api.context import InferenceRequest, Operation
from gateway.api.schemas import ChatCompletionBody, CompletionBody
from gateway.errors import InvalidRequest
from gateway.policies import Grant

_FIELD_IN_FAULT = re.compile(r"`\$\.(\w+)|required field `(\w+)`")

Body = ChatCompletionBody | CompletionBody
_decoders: Mapping[Operation, Callable[[bytes], Body]] = {
    Operation.CHAT_COMPLETIONS: msgspec.json.Decoder(ChatCompletionBody).decode,
    Operation.COMPLETIONS: msgspec.json.Decoder(CompletionBody).decode,
}
_members_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()


class _Prompt(msgspec.Struct, frozen=True):
    text: bytes  # JSON, as the client sent it
    num_bytes: int  # with tools, which the chat template writes into the prompt
    num_choices: int  # completions the replica will generate


def parse_request(
    operation: Operation, raw_body: bytes, grant: Grant, resolve_model: Callable[[str], str]
) -> tuple[InferenceRequest, bytes]:
    """The request, and the body that the replica gets.

    Raises InvalidRequest, and whatever ``resolve_model`` raises for an unknown model.
    """
    try:
        return _parse(operation, raw_body, grant, resolve_model)
    except RecursionError as exc:  # which any of the decoders may find first
        raise InvalidRequest("The body is nested too deeply.") from exc


def _parse(
    operation: Operation, raw_body: bytes, grant: Grant, resolve_model: Callable[[str], str]
) -> tuple[InferenceRequest, bytes]:
    body = _decode(operation, raw_body)
    prompt = _prompt_of(body)
    model = resolve_model(body.model)
    is_stream = body.stream is True
    request = InferenceRequest(
        operation=operation,
        model_requested=body.model,
        model=model,
        is_stream=is_stream,
        wants_usage_chunk=body.stream_options is not None
        and body.stream_options.include_usage is True,
        estimated_prompt_tokens=estimate_prompt_tokens(prompt.num_bytes),
        max_completion_tokens=_completion_bound(body, grant.limits) * prompt.num_choices,
        affinity_key=_affinity_key(body, prompt, grant),
    )
    return request, _rewrite(raw_body, body, model, grant)


def _decode(operation: Operation, raw_body: bytes) -> Body:
    try:
        if not raw_body.isascii():
            raw_body.decode()  # the parts that stay raw are not decoded, hence not checked, below
        return _decoders[operation](raw_body)
    except UnicodeDecodeError as exc:
        raise InvalidRequest("The body must be UTF-8.") from exc
    except msgspec.ValidationError as exc:
        fault = _FIELD_IN_FAULT.search(str(exc))
        param = None if fault is None else fault[1] or fault[2]
        raise InvalidRequest(f"Invalid body: {exc}.", param=param) from exc
    except msgspec.DecodeError as exc:
        raise InvalidRequest("The body must be one JSON object.") from exc


def _prompt_of(body: Body) -> _Prompt:
    num_choices = 1 if body.n is None else body.n
    if isinstance(body, ChatCompletionBody):
        text = bytes(body.messages)
        if not text.startswith(b"["):
            raise InvalidRequest("Expected 'messages' to be an array.", param="messages")
        return _Prompt(text, len(text) + len(bytes(body.tools)), num_choices)
    text = bytes(body.prompt)
    if not text.startswith((b'"', b"[")):
        raise InvalidRequest("Expected 'prompt' to be a string or an array.", param="prompt")
    num_choices = max(num_choices, 1 if body.best_of is None else body.best_of)
    return _Prompt(text, len(text), num_choices * num_prompts(text))


def _completion_bound(body: Body, limits: Limits) -> int:
    """Most tokens of one choice.  Whichever field the replica obeys, the bound holds."""
    asked = [
        (name, value)
        for name, value in (
            ("max_completion_tokens", body.max_completion_tokens),
            ("max_tokens", body.max_tokens),
        )
        if value is not None
    ]
    for name, value in asked:
        if value > limits.max_completion_tokens:
            raise InvalidRequest(
                f"{name} may be at most {limits.max_completion_tokens}, got {value}.", param=name
            )
    return max((value for _, value in asked), default=limits.default_completion_tokens)


def _affinity_key(body: Body, prompt: _Prompt, grant: Grant) -> bytes:
    make = chat_affinity_key if isinstance(body, ChatCompletionBody) else prompt_affinity_key
    return make(grant.salt, prompt.text, body.prompt_cache_key)


def _rewrite(raw_body: bytes, body: Body, model: str, grant: Grant) -> bytes:
    members: dict[str, object] = dict(_members_decoder.decode(raw_body))
    if not GATEWAY_OWNED_FIELDS.isdisjoint(members):
        name = min(GATEWAY_OWNED_FIELDS & members.keys())
        raise InvalidRequest(f"{name} is not for clients to set.", param=name)
    members["model"] = model
    members[CACHE_SALT_FIELD] = tenant_cache_salt(grant.salt, body.cache_salt)
    if body.max_tokens is None and body.max_completion_tokens is None:
        members["max_tokens"] = grant.limits.default_completion_tokens
    if body.stream is True:  # always metered, whatever the client asked for
        options = {} if body.stream_options is None else _options_of(members["stream_options"])
        members["stream_options"] = {**options, "include_usage": True}
    return _encoder.encode(members)


def _options_of(raw: object) -> dict[str, object]:
    assert isinstance(raw, msgspec.Raw)
    return dict(_members_decoder.decode(raw))


@lru_cache(maxsize=10_000)
def tenant_cache_salt(tenant_salt: bytes, client_salt: str | None) -> str:
    """Differs between tenants whatever they send; stable for one tenant and one own salt."""
    own = b"" if client_salt is None else b"s" + client_salt.encode()
    return hashlib.blake2b(own, key=tenant_salt, digest_size=16).hexdigest()
