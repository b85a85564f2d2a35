"""Which requests are live under which id, what the latest finished ones consumed, and which were
aborted before they came."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from replica.engine.live_request import LiveRequest, sum_usage
from replica.engine.messages import Usage
from replica.errors import EngineDied

_NUM_REMEMBERED: Final = 10_000  # requests: at 100 a second, enough for an abort 100 s late


class RequestLog:
    """Request ids come from clients and need not be unique: usages under one id are summed."""

    def __init__(self) -> None:
        self._live: dict[str, list[LiveRequest]] = {}
        self._finished: OrderedDict[str, Usage | None] = OrderedDict()  # None: nobody can say
        self._buried: OrderedDict[str, float] = OrderedDict()

    def open(self, request: LiveRequest) -> None:
        self._live.setdefault(request.request_id, []).append(request)

    def close(self, request: LiveRequest) -> None:
        """Idempotent.  The request's usage is final, or will never be known."""
        requests = self._live.get(request.request_id, [])
        if request not in requests:
            return
        requests.remove(request)
        if not requests:
            del self._live[request.request_id]
        before = self._finished.pop(request.request_id, Usage())
        total = None
        if before is not None and request.is_counted:
            total = sum_usage((before, request.usage))
        self._finished[request.request_id] = total
        if len(self._finished) > _NUM_REMEMBERED:
            self._finished.popitem(last=False)

    def bury(self, request_id: str, until_s: float) -> None:
        """The next request of this id, if it comes before ``until_s``, is dead on arrival."""
        self._buried[request_id] = until_s
        if len(self._buried) > _NUM_REMEMBERED:
            self._buried.popitem(last=False)

    def exhume(self, request_id: str, now_s: float) -> bool:
        """Whether the id was buried.  Counts once: ids are not for ever."""
        return now_s < self._buried.pop(request_id, now_s)

    def find(self, request_id: str) -> Sequence[LiveRequest]:
        return tuple(self._live.get(request_id, ()))

    def finished_usage(self, request_id: str) -> Usage | None:
        """None: no request of that id has finished, as far as is remembered.

        Raises EngineDied for one that the engine has not counted: zero would be believed.
        """
        if request_id not in self._finished:
            return None
        usage = self._finished[request_id]
        if usage is None:
            raise EngineDied("the engine died before it could count the request")
        return usage
