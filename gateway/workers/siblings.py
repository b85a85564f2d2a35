"""Metrics of all workers, from whichever of them is asked: a scraper sees one gateway."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.errors import Unavailable
from gateway.workers.place import Place

_PATIENCE_S = 2.0  # of scrapers it is ten; a worker that is just being started is not there


class Siblings:
    def __init__(self, place: Place, render: Callable[[], str]) -> None:
        self._place = place
        self._render = render

    @asynccontextmanager
    async def answering(self) -> AsyncGenerator[None]:
        """Tells the others this worker's own metrics."""
        own = self._place.metrics_sockets()[self._place.index]
        own.unlink(missing_ok=True)  # of a predecessor in this place
        async with await asyncio.start_unix_server(self._tell, own):
            yield

    async def render_all(self) -> str:
        """Raises Unavailable if one does not answer: without it the sums would go back."""
        paths = self._place.metrics_sockets()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return added_up(await asyncio.gather(*map(_asked, paths)))
        except OSError as exc:  # a time-out is one
            raise Unavailable("Not every worker tells its metrics.") from exc

    async def _tell(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(self._render().encode())
            await writer.drain()
        except ConnectionError:
            return  # who asked does not wait any more
        finally:
            writer.close()


async def _asked(path: Path) -> str:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
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
