"""A conversation as one prompt, by the template that came with the model.

Rendered as transformers renders it (same environment, same globals), in Jinja's sandbox:
templates come from model files and must not reach into this process.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from replica.errors import InvalidRequest, ModelInvalid


class ChatTemplate:
    def __init__(
        self, source: str, special_tokens: Mapping[str, str], now: Callable[[], datetime]
    ) -> None:
        """``special_tokens`` are what templates call bos_token, eos_token.  Raises ModelInvalid."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as exc:
            raise ModelInvalid(f"chat template: {exc}") from exc
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Ends where the assistant's answer begins.  Raises InvalidRequest."""
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, tools=None, **self._special_tokens
            )
        except (jinja2.TemplateError, TypeError, ValueError) as exc:
            raise InvalidRequest(f"the chat template refused: {exc}", param="messages") from exc


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,  # whatever a template holds
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
