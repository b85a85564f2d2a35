"""The one way a message can be wrong, and how a decoder says so."""

from typing import Final

import msgspec

UNDECODABLE: Final = (msgspec.MsgspecError, RecursionError)
"""What ``msgspec`` raises for bytes that are not the message: the second for deep nesting."""


class ContractError(ValueError):
    """The bytes are not a message this version understands."""


class Unknown(ContractError):
    """A message names something that is not there."""
