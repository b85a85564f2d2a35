"""What is written down of a pool before a count is: the fence on the API server's side.

The notebook is the pool's own status, written only on top of the version that was read.  Each term
of leadership writes its name there first.  A predecessor that was held up between its last look at
the clock and its write finds the version changed, reads again, finds another name, and stops.

It also settles whose a count is: one of the two in the variant's order is ours, any other is a
person's.
"""

from typing import Final, Protocol

from autoscaler.errors import ClusterRefused, StaleWrite
from autoscaler.kubernetes.objects import Order, Pool, decoded
from autoscaler.kubernetes.wire import Json

MAX_ATTEMPTS: Final = 4  # a write that is overtaken as often by others' is left to the next tick


class Leadership(Protocol):
    """Whether this process may write, now, and the name of its term."""

    @property
    def token(self) -> str: ...

    def may_act(self) -> bool: ...


class Writable(Protocol):
    async def get(self, path: str, **query: str) -> bytes: ...

    async def patch(self, path: str, body: Json) -> bytes:
        """A merge patch; raises StaleWrite when the version in it is not the current one."""


class Notebook:
    def __init__(self, api: Writable, path: str, leadership: Leadership) -> None:
        self._api = api
        self._path = path
        self._leadership = leadership
        self.pool: Pool | None = None  # as last read or written
        self._uid = ""  # of the pool that the next three speak of
        self._claimed = ""  # the token under which this process has written here
        self._settled: dict[str, int] = {}  # counts to be told with the next write of that term
        self._settled_in = ""

    async def read(self) -> Pool:
        """Raises ClusterRefused."""
        pool = decoded(await self._api.get(self._path), Pool)
        if pool.metadata.uid != self._uid:  # a namesake, made anew: nothing is written there yet
            self._uid, self._claimed = pool.metadata.uid, ""
            self._settled.clear()
        self.pool = pool
        return pool

    def num_written(self, variant: str, num_ordered: int) -> int | None:
        """Of two counts that are ours the one that is there, else the one before."""
        assert self.pool is not None, "read first"
        order = self.pool.status.orders.get(variant, Order())
        if num_ordered in (order.written, order.writing):
            return num_ordered
        return order.written if order.writing is None else order.writing

    async def note_order(self, variant: str, *, seen: int, wanted: int) -> None:
        """Before the count is written.  Raises ClusterRefused."""
        self._settled.pop(variant, None)
        await self.write({"orders": {variant: {"written": seen, "writing": wanted}}})

    @property
    def has_unsettled(self) -> bool:
        return bool(self._settled) and self._settled_in == self._leadership.token

    def settle(self, variant: str, count: int) -> None:
        """The count is taken for ours: any other one is a person's from now on."""
        if self._settled_in != self._leadership.token:  # what was not told then is not true now
            self._settled.clear()
            self._settled_in = self._leadership.token
        self._settled[variant] = count

    async def write(self, status: Json) -> None:
        """Some fields of the status, under this term's name.  Raises ClusterRefused."""
        for _ in range(MAX_ATTEMPTS):
            pool = await self.read() if self.pool is None else self.pool
            self._require_ours(pool)
            token = self._leadership.token
            known = self._settled if self.has_unsettled else {}
            settled = {v: {"written": n, "writing": None} for v, n in known.items()}
            left = {name: None for name in pool.status.orders if name not in _variants_of(pool)}
            orders = {**left, **settled, **status.get("orders", {})}
            body = {
                "metadata": {"resourceVersion": pool.metadata.resource_version},
                "status": {**status, "orders": orders, "decidedBy": token},
            }
            try:
                answer = await self._api.patch(f"{self._path}/status", body)
            except StaleWrite:
                self.pool = None
                continue
            self.pool = decoded(answer, Pool)
            self._claimed = token
            self._settled.clear()
            return
        raise StaleWrite(f"{self._path}: overtaken {MAX_ATTEMPTS} times")

    def _require_ours(self, pool: Pool) -> None:
        token = self._leadership.token
        if not self._leadership.may_act():
            raise ClusterRefused("another process leads")
        if self._claimed == token and pool.status.decided_by != token:
            raise ClusterRefused("another process has led since")


def _variants_of(pool: Pool) -> set[object]:
    """By name, as they stand in the resource, whether or not the rest of it makes sense."""
    variants = pool.spec.get("variants")
    known = variants if isinstance(variants, list) else ()
    return {variant.get("name") for variant in known if isinstance(variant, dict)}
