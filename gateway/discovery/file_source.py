"""A file of replicas, spelled as in ``GATEWAY_REPLICAS``, read again whenever it changes.

One that cannot be read or decoded leaves the last good list in force.
"""

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Final

import msgspec

from contracts.errors import UNDECODABLE
from gateway.discovery.membership import Members, Publish
from gateway.worker_thread import WorkerThread

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.5


class _Address(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    url: Annotated[str, msgspec.Meta(pattern=r"^http://[^/:]+:\d+/?$")]


_decoder = msgspec.json.Decoder(list[_Address])


class FileSource:
    name = "file"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None  # modification time (ns), inode, bytes
        self._failure: str | None = None

    async def run(self, publish: Publish) -> None:
        reader = WorkerThread("replica-file-reader")
        try:
            while True:
                members = await reader.call(self.read)
                if members is not None:
                    publish(members)
                await asyncio.sleep(_LOOK_S)
        finally:
            reader.stop()

    def read(self) -> Members | None:
        """``None``: nothing new that is good."""
        try:
            status = self._path.stat()
            identity = (status.st_mtime_ns, status.st_ino, status.st_size)
            if identity == self._seen:
                return None
            content = self._path.read_bytes()
            self._seen = identity
            addresses = _decoder.decode(content)
        except (OSError, *UNDECODABLE) as exc:
            self._refuse(f"{type(exc).__name__}: {exc}")
            return None
        members = {address.name: address.url for address in addresses}
        if len(members) != len(addresses):
            self._refuse("a name stands twice")
            return None
        self._failure = None
        return members

    def _refuse(self, failure: str) -> None:
        if failure != self._failure:  # once per fault
            extra = {"path": str(self._path), "error": failure}
            logger.error("replica file refused, keeping the last good list", extra=extra)
        self._failure = failure
