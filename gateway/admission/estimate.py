"""How many tokens a request may cost, before anybody has tokenised it.

Tokenising on the event loop would block it for long prompts (litellm#26193), so the rule is
arithmetic: one token per three bytes of the JSON that holds the prompt, plus a constant for the
chat template.  English runs at four bytes a token, Chinese at about three; JSON's own quotes and
role names come on top, so the estimate is usually high.  The difference comes back at settlement.
"""

import msgspec

_BYTES_PER_TOKEN = 3
_TEMPLATE_TOKENS = 8  # begin, role markers, and the assistant's cue

_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def estimate_prompt_tokens(num_prompt_bytes: int) -> int:
    return -(-num_prompt_bytes // _BYTES_PER_TOKEN) + _TEMPLATE_TOKENS


def num_prompts(prompt: bytes) -> int:
    """Prompts in a completion request: JSON text, token ids, or a list of either."""
    if not prompt.startswith(b"["):
        return 1
    items = _list_decoder.decode(prompt)
    if not items or bytes(items[0])[:1] not in (b'"', b"["):
        return 1  # one prompt, given as token ids
    return len(items)
