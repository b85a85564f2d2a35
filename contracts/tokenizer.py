"""The tokenizer a replica counts with, for gateways that must count as it does.

``GET TOKENIZER_PATH`` answers ``TokenizerFile``.  A server without it answers 404.
"""

from typing import Final

import msgspec

TOKENIZER_PATH: Final = "/pandal/v1/tokenizer"


class TokenizerFile(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="replica.tokenizer.v1"
):
    model: str
    tokenizer_json: str  # as Hugging Face's ``tokenizers`` writes it; megabytes
