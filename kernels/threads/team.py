"""A fixed set of threads that enter one compiled function at the same time.

The function shares out its own work, see ``kernels.threads.stage``; nothing of it returns to Python
in between.  Compared with a parallel loop per operation this costs one wake-up per step instead of
several hundred, needs no OpenMP library, and compiles several times faster, because there is no
parallel code to generate.
"""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, Self

SharedFunction = Callable[..., None]  # of the thread's index, their number, and its arguments
_Work = tuple[SharedFunction, tuple[Any, ...]]


class ThreadTeam:
    """The caller of ``run`` is thread 0; the others wait for it without using their cores.

    Which cores they are is left to the operating system: docs/decisions/0041.
    """

    def __init__(self, num_threads: int) -> None:
        if num_threads < 1:
            raise ValueError(f"expected at least one thread, got {num_threads}")
        self.num_threads: Final = num_threads
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._inboxes: list[SimpleQueue[_Work | None]] = []
        self._threads: list[threading.Thread] = []
        for index in range(1, num_threads):
            inbox: SimpleQueue[_Work | None] = SimpleQueue()
            thread = threading.Thread(
                target=self._serve, args=(index, inbox), name=f"kernels-{index}", daemon=True
            )
            self._inboxes.append(inbox)
            self._threads.append(thread)
            thread.start()

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """All but the caller's."""
        return self._threads

    def run(self, function: SharedFunction, *arguments: Any) -> None:
        """Returns when every thread has.  ``function`` must be compiled for these arguments:

        a thread that compiled first would keep the others waiting.
        """
        for inbox in self._inboxes:
            inbox.put((function, arguments))
        function(0, self.num_threads, *arguments)
        for error in [self._done.get() for _ in self._inboxes]:
            if error is not None:
                raise error

    def close(self) -> None:
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join()
        self._inboxes.clear()
        self._threads.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _serve(self, index: int, inbox: "SimpleQueue[_Work | None]") -> None:
        while (work := inbox.get()) is not None:
            function, arguments = work
            error: BaseException | None = None
            try:
                function(index, self.num_threads, *arguments)
            except Exception as exc:  # noqa: BLE001 - handed to the caller of run
                error = exc
            self._done.put(error)
