"""What steps run on.  Nothing else in this package knows which device it is.

A CUDA device computes behind our back: whoever needs a number waits for a mark.  The CPU computes
at once, and its marks are reached when they are made.
"""

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy.typing as npt
import torch

Work = Callable[[], None]

_MEASURED_ROUNDS: Final = 10


class Mark(Protocol):
    def wait(self) -> None:
        """Until all that was begun before the mark is done."""
        ...


class Device(Protocol):
    @property
    def description(self) -> str: ...

    @property
    def torch_device(self) -> torch.device: ...

    @property
    def default_dtype(self) -> torch.dtype:
        """What weights and activations are, unless somebody asks."""
        ...

    def free_bytes(self) -> int: ...

    def peak_bytes(self, work: Work) -> int:
        """What doing it takes on top of what is held, at its worst."""
        ...

    def upload(self, values: npt.NDArray[Any]) -> torch.Tensor:
        """Begins the copy; ``values`` may change as soon as this returns."""
        ...

    def download(self, x: torch.Tensor) -> torch.Tensor:
        """Begins the copy; what comes back holds it once a mark after it is reached."""
        ...

    def host_bytes(self, *shape: int) -> torch.Tensor:
        """Zeros on the host, uint8, which kernels on the device read and write."""
        ...

    def mark(self) -> Mark: ...

    def measure_s(self, work: Callable[[], object]) -> float:
        """Seconds that doing it takes, done before."""
        ...

    def warm_up(self, work: Callable[[], object]) -> None:
        """Does it, where what is done for the first time is compiled first."""
        ...

    def capture(self, work: Work) -> Work:
        """What repeats the work, on the same tensors, without its launches."""
        ...


class _Reached:
    """A Mark."""

    def wait(self) -> None:
        pass


class CpuDevice:
    """A Device: for tests, under the interpreter, and to see that the code is right."""

    description = "the CPU"
    torch_device = torch.device("cpu")
    default_dtype = torch.float32

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes

    def free_bytes(self) -> int:
        return self._memory_bytes

    def peak_bytes(self, work: Work) -> int:
        """Nobody counts here; the work is done, so that what fails does so now."""
        work()
        return 0

    def upload(self, values: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values.copy())

    def download(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    def host_bytes(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.uint8)

    def mark(self) -> Mark:
        return _Reached()

    def measure_s(self, work: Callable[[], object]) -> float:
        work()
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    def warm_up(self, work: Callable[[], object]) -> None:
        pass

    def capture(self, work: Work) -> Work:
        return work


class _Event:
    """A Mark."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record()

    def wait(self) -> None:
        self._event.synchronize()


class CudaDevice:
    """A Device.  All graphs share one pool: of two, one is never replayed while another runs."""

    default_dtype = torch.bfloat16

    def __init__(self, index: int = 0) -> None:
        torch.cuda.set_device(index)
        self.torch_device = torch.device("cuda", index)
        self.description = torch.cuda.get_device_name(index)
        self._graph_pool: Any = None  # torch's handle has no public type

    def free_bytes(self) -> int:
        """What the driver has left, and what torch holds without using it."""
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.torch_device)[0])

    def peak_bytes(self, work: Work) -> int:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated()) - before

    def upload(self, values: npt.NDArray[Any]) -> torch.Tensor:
        # Pinned anew each time: torch keeps the memory until the copy is through, so no step waits
        # for the one before to have read its numbers.
        pinned = torch.from_numpy(values).pin_memory()
        return pinned.to(self.torch_device, non_blocking=True)

    def download(self, x: torch.Tensor) -> torch.Tensor:
        host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        return host.copy_(x, non_blocking=True)

    def host_bytes(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.uint8, pin_memory=True)

    def mark(self) -> Mark:
        return _Event()

    def measure_s(self, work: Callable[[], object]) -> float:
        """The mean of several, which lie in the caches no more than a step's would."""
        work()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(_MEASURED_ROUNDS):
            work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / _MEASURED_ROUNDS

    def warm_up(self, work: Callable[[], object]) -> None:
        """On a stream of its own: nothing can be compiled while a graph is captured."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)

    def capture(self, work: Work) -> Work:
        self.warm_up(work)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._graph_pool):
            work()
        if self._graph_pool is None:
            self._graph_pool = graph.pool()
        return graph.replay
