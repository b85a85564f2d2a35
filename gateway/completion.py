"""Waiting without a task: completions, and the flows that await them.

``asyncio`` gives every waiter a turn of the event loop of its own.  On the data plane that costs
more than most of what happens between two waits, so here whoever completes something carries its
waiter on at once, by a plain call.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Completion(Generic[T]):
    """One result for one waiter.  The first outcome stands, later ones change nothing.

    A flow that awaits it goes on inside ``resolve`` or ``fail``.  To ``asyncio`` it is a future
    (what ``asyncio.isfuture`` asks for), so tasks may await it as well, in the loop's next turn.
    """

    is_done = False
    _asyncio_future_blocking = False
    _result: T | None = None
    _failure: BaseException | None = None
    _waiter: Callable[[], object] | None = None

    def resolve(self, result: T) -> None:
        if not self.is_done:
            self.is_done = True
            self._result = result
            waiter = self._waiter
            if waiter is not None:
                self._waiter = None  # who keeps the result keeps not its waiter
                waiter()

    def fail(self, failure: BaseException) -> None:
        if not self.is_done:
            self.is_done = True
            self._failure = failure
            if self._waiter is not None:
                self._wake()

    def then(self, waiter: Callable[[], object] | None) -> None:
        """Calls ``waiter`` once it is done, in place of any other; at once if it is."""
        self._waiter = waiter
        if self.is_done and waiter is not None:
            self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None  # who keeps the result keeps not its waiter
        assert waiter is not None
        waiter()

    def __await__(self) -> Generator[Any, None, T]:  # yields itself, to a flow or a task
        if not self.is_done:
            self._asyncio_future_blocking = True
            yield self
        failure = self._failure
        if failure is not None:
            self._failure = None  # its waiter has it: nobody else will ask
            try:
                raise failure
            finally:
                del failure  # whose traceback leads here: a cycle, and with it all of the request
        return self._result  # type: ignore[return-value]  # set, for it is done

    def done(self) -> bool:
        return self.is_done

    def result(self) -> T:
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                del self  # whose traceback leads here
        return self._result  # type: ignore[return-value]  # set, for it is done

    def exception(self) -> BaseException | None:
        return self._failure

    # For asyncio

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def add_done_callback(
        self, callback: Callable[[Any], object], *, context: Context | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        self.then(lambda: loop.call_soon(callback, self, context=context))

    def remove_done_callback(self, _: Callable[[Any], object]) -> int:
        self._waiter = None
        return 1

    def cancel(self, msg: object = None) -> bool:
        was_done = self.is_done
        self.fail(asyncio.CancelledError())
        return not was_done

    def cancelled(self) -> bool:
        return isinstance(self._failure, asyncio.CancelledError)


class Broadcast(Generic[T]):
    """One result for all that wait for it, be it nobody: only who waits costs anything."""

    is_done = False
    _result: T | None = None
    _make_failure: Callable[[], BaseException] | None = None
    _look_at = 16  # who has left is forgotten when so many wait, and then at twice as many as do

    def __init__(self) -> None:
        self._waiting: list[Completion[T]] = []

    def resolve(self, result: T) -> None:
        """As ``Completion``'s."""
        if not self.is_done:
            self.is_done, self._result = True, result
            told, self._waiting = self._waiting, []
            for waiting in told:
                waiting.resolve(result)

    def fail(self, make_failure: Callable[[], BaseException]) -> None:
        """As ``Completion``'s; each gets a failure of its own, which keeps what raised it."""
        if not self.is_done:
            self.is_done, self._make_failure = True, make_failure
            told, self._waiting = self._waiting, []
            for waiting in told:
                waiting.fail(make_failure())

    def waiting(self) -> Completion[T]:
        """One wait for it, which may be ended before."""
        waiting: Completion[T] = Completion()
        if not self.is_done:
            self._forget_who_left()
            self._waiting.append(waiting)
        elif self._make_failure is not None:
            waiting.fail(self._make_failure())
        else:
            waiting.resolve(self._result)  # type: ignore[arg-type]  # set, for it is done
        return waiting

    def _forget_who_left(self) -> None:
        if len(self._waiting) >= self._look_at:
            self._waiting = [waiting for waiting in self._waiting if not waiting.is_done]
            self._look_at = max(self._look_at, 2 * len(self._waiting))

    def __await__(self) -> Generator[Any, None, T]:
        if not self.is_done:
            return (yield from self.waiting().__await__())
        if self._make_failure is not None:
            raise self._make_failure()
        return self._result  # type: ignore[return-value]  # set, for it is done


class Flow:
    """Runs one coroutine to its end, carried on by what it awaits: completions, or futures.

    What needs a task around it (``asyncio.timeout``, say) goes through ``in_task``.
    """

    is_over = False
    _awaited: Any = None  # a Completion or a Future

    def __init__(
        self, coroutine: Coroutine[Any, None, None], on_end: Callable[["Flow"], object]
    ) -> None:
        self._coroutine, self._send = coroutine, coroutine.send
        self._on_end = on_end

    def cancel(self) -> None:
        """Raises CancelledError where the coroutine waits."""
        if self.is_over:
            return
        awaited, self._awaited = self._awaited, None
        if isinstance(awaited, Completion):
            awaited.then(None)
        self._advance(asyncio.CancelledError())

    def _on_future(self, future: "asyncio.Future[Any]") -> None:
        if future is self._awaited:  # else it was cancelled meanwhile
            self._advance()

    def _advance(self, failure: BaseException | None = None) -> None:
        try:
            awaited = self._send(None) if failure is None else self._coroutine.throw(failure)
        except (StopIteration, asyncio.CancelledError):
            pass
        except Exception:
            logger.exception("flow failed")
        else:
            self._awaited = awaited
            if type(awaited) is Completion:
                awaited._waiter = self._advance  # as ``then``: it is not done
            else:
                awaited._asyncio_future_blocking = False
                awaited.add_done_callback(self._on_future)
            return
        self.is_over = True
        self._awaited = None
        self._on_end(self)

    start = _advance  # for the first time


async def in_task(coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result, from a task of its own, which ends with the wait for it."""
    task = asyncio.get_running_loop().create_task(coroutine)
    try:
        return await task
    finally:
        task.cancel()
