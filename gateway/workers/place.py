"""Which of several workers a process is: told on its command line by the one that started it."""

from pathlib import Path

import msgspec


class Place(msgspec.Struct, frozen=True):
    index: int
    num_workers: int
    port: int  # of all workers
    folder: Path  # private to the workers of one gateway

    def sockets(self) -> list[Path]:
        """One of each worker, at which it answers the others."""
        return [self.folder / f"worker-{index}.sock" for index in range(self.num_workers)]


def encode_place(place: Place) -> str:
    return msgspec.json.encode(place, enc_hook=str).decode()


def decode_place(argument: str) -> Place:
    """Raises msgspec.ValidationError."""
    return msgspec.json.decode(argument, type=Place, dec_hook=lambda _, text: Path(text))
