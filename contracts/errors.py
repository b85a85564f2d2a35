"""The one way a message can be wrong."""


class ContractError(ValueError):
    """The bytes are not a message this version understands."""
