"""``POST /v1/chat/completions``."""

from starlette.requests import Request
from starlette.responses import Response

from replica.api.generation import Endpoint, serve_generation
from replica.api.messages import template_messages
from replica.api.parameters import top_logprobs
from replica.api.replies import ChatReplies
from replica.api.schemas import ChatCompletionBody, Message
from replica.errors import InvalidRequest
from replica.model.tokenizer import Tokenizer


async def create_chat_completion(request: Request) -> Response:
    return await serve_generation(request, _CHAT)


def render_messages(messages: list[Message], tokenizer: Tokenizer) -> str:
    """Raises InvalidRequest."""
    if not tokenizer.has_chat_template:
        raise InvalidRequest("the model has no chat template", param="messages")
    return tokenizer.render_chat(template_messages(messages))


def _prompt(body: ChatCompletionBody, tokenizer: Tokenizer) -> str:
    if body.add_generation_prompt is False:
        raise InvalidRequest(
            "add_generation_prompt=false is not supported", param="add_generation_prompt"
        )
    return render_messages(body.messages, tokenizer)


def _max_tokens(body: ChatCompletionBody) -> tuple[int | None, str]:
    """OpenAI deprecates max_tokens in favour of the longer name."""
    if body.max_completion_tokens is not None:
        return body.max_completion_tokens, "max_completion_tokens"
    return body.max_tokens, "max_tokens"


def _num_top_logprobs(body: ChatCompletionBody) -> int | None:
    num_top = top_logprobs(body.top_logprobs, "top_logprobs")
    if body.logprobs:
        return num_top
    if num_top:
        raise InvalidRequest("top_logprobs needs logprobs", param="top_logprobs")
    return None


_CHAT = Endpoint(
    name="chat.completions",
    body_type=ChatCompletionBody,
    prompt_param="messages",
    prompt=_prompt,
    max_tokens=_max_tokens,
    num_top_logprobs=_num_top_logprobs,
    replies=ChatReplies,
)
