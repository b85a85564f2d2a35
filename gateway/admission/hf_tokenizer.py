"""The model's own tokenizer, for counting only.  Blocking: for worker threads.

The library is an extra of its own (``exact``): a gateway without it estimates, and says so.  It
lets go of the interpreter lock while it works.
"""

from typing import Any

from gateway.errors import TokenizerUnavailable


class HfTokenizer:
    def __init__(self, tokenizer: Any) -> None:  # the library may be absent
        self._tokenizer = tokenizer

    def num_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


def load_tokenizer(tokenizer_json: str) -> HfTokenizer:
    """Raises TokenizerUnavailable."""
    try:
        from tokenizers import Tokenizer
    except ImportError as exc:
        raise TokenizerUnavailable("the extra 'exact' is not installed") from exc
    try:
        return HfTokenizer(Tokenizer.from_str(tokenizer_json))
    except Exception as exc:  # the library raises nothing more precise
        raise TokenizerUnavailable("the replica's tokenizer cannot be read") from exc
