"""``POST /v1/completions``."""

from starlette.requests import Request
from starlette.responses import Response

from replica.api.generation import Endpoint, serve_generation
from replica.api.parameters import check_token_ids, top_logprobs
from replica.api.replies import CompletionReplies
from replica.api.schemas import CompletionBody, Prompt
from replica.errors import InvalidRequest, NotSupported
from replica.model.tokenizer import Tokenizer


async def create_completion(request: Request) -> Response:
    return await serve_generation(request, _COMPLETIONS)


def _prompt(body: CompletionBody, tokenizer: Tokenizer) -> str | list[int]:
    prompt = _only_prompt(body.prompt)
    if not isinstance(prompt, str):
        check_token_ids(prompt, tokenizer, "prompt")
    return prompt


def _only_prompt(prompt: Prompt) -> str | list[int]:
    """A prompt, token ids, or a list of exactly one of either.  Raises InvalidRequest."""
    if isinstance(prompt, str):
        return prompt
    token_ids = [item for item in prompt if isinstance(item, int)]
    if len(token_ids) == len(prompt):
        return token_ids
    if token_ids:
        raise InvalidRequest("prompt mixes token ids and prompts", param="prompt")
    if len(prompt) > 1:
        raise InvalidRequest("several prompts in one request are not supported", param="prompt")
    (only,) = prompt
    assert not isinstance(only, int)
    return only


def _num_top_logprobs(body: CompletionBody) -> int | None:
    if body.top_logprobs not in (None, 0):
        raise NotSupported("completions have logprobs, not top_logprobs", param="top_logprobs")
    if body.logprobs is None or body.logprobs is False:
        return None
    if body.logprobs is True:
        raise InvalidRequest("logprobs is a number of tokens", param="logprobs")
    return top_logprobs(body.logprobs, "logprobs")


_COMPLETIONS = Endpoint(
    name="completions",
    body_type=CompletionBody,
    prompt_param="prompt",
    prompt=_prompt,
    max_tokens=lambda body: (body.max_tokens, "max_tokens"),
    num_top_logprobs=_num_top_logprobs,
    replies=CompletionReplies,
)
