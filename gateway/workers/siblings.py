"""What all workers say, from whichever of them is asked: probes and scrapers see one gateway."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from gateway.errors import Unavailable
from gateway.workers.place import Place

_PATIENCE_S = 2.0  # of scrapers it is ten; a worker that is just being started is not there
_METRICS: Final = b"metrics\n"
_READINESS: Final = b"readiness\n"


class Siblings:
    def __init__(
        self,
        place: Place,
        render: Callable[[], str],
        reasons_clients_meet: Callable[[], Sequence[str]],
    ) -> None:
        """What this worker says of itself."""
        self._place = place
        self._answers: Mapping[bytes, Callable[[], str]] = {
            _METRICS: render,
            _READINESS: lambda: "\n".join(reasons_clients_meet()),
        }

    @asynccontextmanager
    async def answering(self) -> AsyncGenerator[None]:
        """Tells the others of this worker."""
        own = self._place.sockets()[self._place.index]
        own.unlink(missing_ok=True)  # of a predecessor in this place
        async with await asyncio.start_unix_server(self._tell, own):
            yield

    async def render_all(self) -> str:
        """Raises Unavailable if one does not answer: without it the sums would go back."""
        paths = self._place.sockets()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return added_up(await asyncio.gather(*(_asked(p, _METRICS) for p in paths)))
        except OSError as exc:  # a time-out is one
            raise Unavailable("Not every worker tells its metrics.") from exc

    async def reasons_not_ready(self) -> Sequence[str]:
        """Of all workers that listen: the kernel deals a client to any of them."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                told = await asyncio.gather(*map(_reasons_of, self._place.sockets()))
        except TimeoutError:
            return ["a worker does not answer"]
        return list(dict.fromkeys(reason for reasons in told for reason in reasons))

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(self._answers[await reader.readline()]().encode())
            await writer.drain()
        except ConnectionError:
            return  # who asked does not wait any more
        finally:
            writer.close()


async def _reasons_of(worker: Path) -> Sequence[str]:
    try:
        return (await _asked(worker, _READINESS)).splitlines()
    except (FileNotFoundError, ConnectionError):
        return ()  # it is not there, so it gets no client


async def _asked(worker: Path, question: bytes) -> str:
    reader, writer = await asyncio.open_unix_connection(worker)
    try:
        writer.write(question)
        return (await reader.read()).decode()
    finally:
        writer.close()


def added_up(expositions: Sequence[str]) -> str:
    """Sample by sample, in Prometheus' text format.  Not each has every sample of a family."""
    families: dict[str, dict[str, float]] = {}  # by their # TYPE line
    for exposition in expositions:
        family: dict[str, float] = {}
        for line in exposition.splitlines():
            if line.startswith("#"):
                family = families.setdefault(line, {})
            else:
                sample, _, text = line.rpartition(" ")
                value = float(text) if "." in text or "e" in text else int(text)
                family[sample] = family.get(sample, 0) + value
    lines: list[str] = []
    for head, family in families.items():
        lines += [head, *(f"{sample} {value}" for sample, value in family.items())]
    return "\n".join([*lines, ""])
