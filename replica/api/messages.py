"""Chat messages as templates take them: a role and a text."""

from collections.abc import Sequence

from replica.api.schemas import ContentPart, Message
from replica.errors import InvalidRequest, NotSupported

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TOOL_ROLES = ("tool", "function")


def template_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Raises InvalidRequest.  ``developer`` is OpenAI's newer word for ``system``."""
    if not messages:
        raise InvalidRequest("messages is empty", param="messages")
    return [_template_message(message, i) for i, message in enumerate(messages)]


def _template_message(message: Message, index: int) -> dict[str, str]:
    where = f"messages[{index}]"
    if message.role in _TOOL_ROLES:
        raise NotSupported("tool calls are not supported", param=f"{where}.role")
    if message.tool_calls or message.function_call:
        raise NotSupported("tool calls are not supported", param=f"{where}.tool_calls")
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"{where}.role must be one of {sorted(_ROLES)}", param=f"{where}.role")
    if message.content is None:
        raise InvalidRequest(f"{where}.content is missing", param=f"{where}.content")
    if isinstance(message.content, str):
        return {"role": role, "content": message.content}
    texts = [_part_text(part, f"{where}.content[{i}]") for i, part in enumerate(message.content)]
    return {"role": role, "content": "\n".join(texts)}


def _part_text(part: ContentPart, where: str) -> str:
    if part.type != "text":
        raise NotSupported(
            f"{where}.type must be 'text': this model reads nothing else", param=f"{where}.type"
        )
    if part.text is None:
        raise InvalidRequest(f"{where}.text is missing", param=f"{where}.text")
    return part.text
