"""What requests may call the model: by its own name, or by that of an adapter of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from replica.errors import UnknownModel


@dataclass(frozen=True, slots=True)
class ServedNames:
    model: str
    adapters: Sequence[str] = ()  # as the engine has them, in their order

    def check(self, name: str | None) -> None:
        """Raises UnknownModel."""
        self.adapter(name)

    def adapter(self, name: str | None) -> int | None:
        """Its place among the adapters, whether it stands alone or behind ``model:``.

        None: it is the model itself, as is what names none.  Raises UnknownModel.
        """
        if name is None or name == self.model:
            return None
        adapter = name.removeprefix(f"{self.model}:")
        if adapter not in self.adapters:
            raise UnknownModel(f"the model {name!r} does not exist", param="model")
        return self.adapters.index(adapter)

    def of(self, adapter: int | None) -> str:
        return self.model if adapter is None else self.adapters[adapter]
