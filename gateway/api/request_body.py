"""OpenAI body -> ``InferenceRequest``: checked, measured, and rewritten for the replica."""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol

import msgspec
from msgspec import UNSET

from contracts.admission import CompletionBound
from contracts.policy import Limits
from contracts.replica_api import CACHE_SALT_FIELD, GATEWAY_OWNED_FIELDS, PRIORITY_FIELD
from gateway.admission.cost import CostModel
from gateway.admission.estimate import completion_prompt, num_prompts
from gateway.admission.prompt_mix import mix_of
from gateway.api.affinity import chat_affinity, clients_affinity, prompt_affinity
from gateway.api.context import InferenceRequest, Operation
from gateway.api.schemas import ABSENT, ChatCompletionBody, CompletionBody, StreamOptions
from gateway.errors import InvalidRequest
from gateway.policies import Grant
from gateway.prompt import Affinity, Prompt, PromptText
from gateway.routing.ring import ring_point
from gateway.routing.text_chain import prompt_text

_FIELD_IN_FAULT = re.compile(r"`\$\.(\w+)|required field `(\w+)`")

Body = ChatCompletionBody | CompletionBody
_decoders: Mapping[Operation, Callable[[bytes], Body]] = {
    Operation.CHAT_COMPLETIONS: msgspec.json.Decoder(ChatCompletionBody).decode,
    Operation.COMPLETIONS: msgspec.json.Decoder(CompletionBody).decode,
}
_members_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()
_PRIORITY = PRIORITY_FIELD.encode()
_MOST_TOO_HIGH = 8  # times, that an estimate may be, learned or not
_USAGE_WANTED = b',"stream_options":{"include_usage":true}'  # metered, whatever the client wants


class Models(Protocol):
    """What the replicas have told."""

    @property
    def takes_priority(self) -> bool:
        """All do: one of another make might refuse a body that holds one."""

    @property
    def plain_names(self) -> Set[str]:
        """That stand for themselves."""

    def resolve(self, model: str, share: Callable[[], float], providers: Collection[str]) -> str:
        """The name that replicas use; of a name for several models by the conversation's share.
        ``providers``: who may serve it, too.  Raises for a model unknown to all of them."""

    def own_name(self, model: str) -> str:
        """What replicas call one that goes by another name here."""


@dataclass(frozen=True, slots=True)
class RequestReader:
    models: Models
    costs: CostModel
    traces_text: bool = False  # routing looks at it

    def read(
        self, operation: Operation, raw_body: bytes, grant: Grant, session: bytes | None = None
    ) -> tuple[InferenceRequest, bytes]:
        """The request, and the body that the replica gets.

        ``session``: of the client's, whose requests should meet the same cache.
        Raises InvalidRequest, NotAllowed, and whatever ``models.resolve`` raises.
        """
        try:
            body = _decode(operation, raw_body)
            if not body.priority is body.resume_tokens is body.return_token_ids is ABSENT:
                raise _not_for_clients(body)
            model = body.model
            if model not in self.models.plain_names:
                share = partial(_share_of, body, grant.salt, session)
                model = self.models.resolve(model, share, grant.tenant.providers)
            if grant.by_model:
                grant = grant.for_model(model)
            if grant.scope is not None:
                grant.scope.check(operation, model)
            request = self._request(operation, body, model, grant, session)
            priority = grant.admission.priority if self.models.takes_priority else 0
            return request, _for_replica(
                raw_body, body, self.models.own_name(model), grant, priority
            )
        except RecursionError as exc:  # which any of the decoders may find first
            raise InvalidRequest("The body is nested too deeply.") from exc

    def _request(
        self, operation: Operation, body: Body, model: str, grant: Grant, session: bytes | None
    ) -> InferenceRequest:
        if isinstance(body, ChatCompletionBody):
            raw = bytes(body.messages)
            if not raw.startswith(b"["):
                raise InvalidRequest("Expected 'messages' to be an array.", param="messages")
            num_bytes = len(raw)
            if body.tools is not ABSENT:  # which the chat template writes into the prompt
                num_bytes += len(bytes(body.tools))
            prompt, num_choices = Prompt(num_bytes, mix_of(raw)), 1 if body.n is None else body.n
        else:
            raw = bytes(body.prompt)
            prompt, num_choices = _measure_completion(body, raw)
        options, policy = body.stream_options, grant.admission
        reserved = bound = _completion_bound(body, grant.limits)
        if policy.completion_bound is not CompletionBound.ASKED:
            reserved = self.costs.answer_tokens(grant.tenant.tenant_id, model, at_most=bound)
        return InferenceRequest(
            operation,
            model_requested=body.model,
            model=model,
            is_stream=body.stream is True,
            wants_usage_chunk=isinstance(options, StreamOptions) and options.include_usage is True,
            prompt=prompt,
            num_choices=num_choices,
            estimated_prompt_tokens=self.costs.prompt_tokens(model, prompt),
            max_completion_tokens=bound * num_choices,
            reserved_completion_tokens=reserved * num_choices,
            affinity=_affinity_of(body, raw, grant.salt, session),
            text=_text_of(body, grant.salt, model) if self.traces_text else None,
            has_seed=body.seed is not ABSENT and bytes(body.seed) != b"null",
            providers=grant.tenant.providers,
        )


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


def _not_for_clients(body: Body) -> InvalidRequest:
    name = next(n for n in sorted(GATEWAY_OWNED_FIELDS) if getattr(body, n) is not ABSENT)
    return InvalidRequest(f"{name} is not for clients to set.", param=name)


def _measure_completion(body: CompletionBody, prompt: bytes) -> tuple[Prompt, int]:
    """The prompt, and how many completions the replica will generate."""
    if not prompt.startswith((b'"', b"[")):
        raise InvalidRequest("Expected 'prompt' to be a string or an array.", param="prompt")
    num_choices = max(
        1 if body.n is None else body.n, 1 if body.best_of is None else body.best_of
    ) * num_prompts(prompt)
    return completion_prompt(prompt), num_choices


def _affinity_of(body: Body, prompt: bytes, tenant_salt: bytes, session: bytes | None) -> Affinity:
    if body.prompt_cache_key is not None:
        return clients_affinity(tenant_salt, body.prompt_cache_key.encode())
    if session is not None:
        return clients_affinity(tenant_salt, session)
    if isinstance(body, ChatCompletionBody):
        tools = b"" if body.tools is ABSENT else bytes(body.tools)
        return chat_affinity(tenant_salt, prompt, tools)
    return prompt_affinity(tenant_salt, prompt)


def _share_of(body: Body, tenant_salt: bytes, session: bytes | None) -> float:
    """0..1, the same for all turns of a conversation."""
    prompt = bytes(body.messages if isinstance(body, ChatCompletionBody) else body.prompt)
    if not prompt.startswith((b"[", b'"')):
        return 0.0  # about to be refused
    affinity = _affinity_of(body, prompt, tenant_salt, session)
    return ring_point(b"share" + affinity.conversation) / 2**64


def _text_of(body: Body, tenant_salt: bytes, model: str) -> PromptText:
    """Without its last sign, which is another once the conversation has gone on."""
    own_salt = b"" if body.cache_salt is UNSET else repr(body.cache_salt).encode()
    seed = b"%b%b\0%b" % (tenant_salt, model.encode(), own_salt)
    if isinstance(body, ChatCompletionBody):
        return prompt_text(seed, bytes(body.tools) + bytes(body.messages)[:-1])
    return prompt_text(seed, bytes(body.prompt)[:-1])


def check_prompt_may_fit(request: InferenceRequest, grant: Grant) -> None:
    """Before it is counted.  Raises InvalidRequest for one so long that counting is no use."""
    if request.estimated_prompt_tokens > grant.admission.max_prompt_tokens * _MOST_TOO_HIGH:
        raise prompt_too_long(request, grant)


def prompt_too_long(request: InferenceRequest, grant: Grant) -> InvalidRequest:
    num_tokens, limit = request.estimated_prompt_tokens, grant.admission.max_prompt_tokens
    return InvalidRequest(
        f"The prompt may hold at most {limit} tokens, it has about {num_tokens}.",
        code="prompt_too_long",
    )


def _completion_bound(body: Body, limits: Limits) -> int:
    """Most tokens of one choice.  Whichever field the replica obeys, the bound holds."""
    bound, name = 0, "max_tokens"  # what is asked for is more
    if isinstance(body.max_tokens, int):
        bound = body.max_tokens
    asked = body.max_completion_tokens
    if asked is not None and asked > bound:
        bound, name = asked, "max_completion_tokens"
    if bound > limits.max_completion_tokens:
        raise InvalidRequest(
            f"{name} may be at most {limits.max_completion_tokens}, got {bound}.", param=name
        )
    return limits.default_completion_tokens if bound == 0 else bound


# What the replica gets


def _for_replica(raw_body: bytes, body: Body, model: str, grant: Grant, priority: int) -> bytes:
    """The client's bytes with our members behind them, where none of ours is among them already.

    A name that a client sends twice goes on twice, and like us the replica obeys the last.
    """
    needs_limit = body.max_completion_tokens is None and not isinstance(body.max_tokens, int)
    if (
        model != body.model
        or body.cache_salt is not UNSET
        or (needs_limit and body.max_tokens is not UNSET)
        or (body.stream is True and body.stream_options is not UNSET)
    ):
        return _rewritten(raw_body, body, model, grant, priority)
    end = raw_body.rindex(b"}")
    return b"%b%b%b%b%b}" % (
        raw_body[:end],
        _salt_member(grant.salt),
        b',"max_tokens":%d' % grant.limits.default_completion_tokens if needs_limit else b"",
        _USAGE_WANTED if body.stream is True else b"",
        b',"%b":%d' % (_PRIORITY, priority) if priority else b"",
    )


def _rewritten(raw_body: bytes, body: Body, model: str, grant: Grant, priority: int) -> bytes:
    members: dict[str, object] = dict(_members_decoder.decode(raw_body))
    members["model"] = model
    if priority:
        members[PRIORITY_FIELD] = priority
    client_salt = None if body.cache_salt is UNSET else body.cache_salt
    members[CACHE_SALT_FIELD] = tenant_cache_salt(grant.salt, client_salt)
    if not isinstance(body.max_tokens, int) and body.max_completion_tokens is None:
        members["max_tokens"] = grant.limits.default_completion_tokens
    if body.stream is True:  # always metered, whatever the client asked for
        options = _options_of(members["stream_options"]) if body.stream_options else {}
        members["stream_options"] = {**options, "include_usage": True}
    return _encoder.encode(members)


def _options_of(raw: object) -> dict[str, object]:
    assert isinstance(raw, msgspec.Raw)
    return dict(_members_decoder.decode(raw))


@lru_cache(maxsize=10_000)
def _salt_member(tenant_salt: bytes) -> bytes:
    return f',"{CACHE_SALT_FIELD}":"{tenant_cache_salt(tenant_salt, None)}"'.encode()


@lru_cache(maxsize=10_000)
def tenant_cache_salt(tenant_salt: bytes, client_salt: str | None) -> str:
    """Differs between tenants whatever they send; stable for one tenant and one own salt."""
    own = b"" if client_salt is None else b"s" + client_salt.encode()
    return hashlib.blake2b(own, key=tenant_salt, digest_size=16).hexdigest()
