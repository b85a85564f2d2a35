"""The engine as the HTTP process sees it: submit, read text, abort, know its state."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from contracts.replica_api import Phase, ReplicaState
from replica.engine.block_mirror import BlockMirror
from replica.engine.live_request import Choice, LiveRequest, OnEnd
from replica.engine.messages import (
    LENGTH_PREFIX_BYTES,
    Abort,
    ClearCache,
    Delta,
    EngineConfig,
    EngineStats,
    FinishReason,
    FromEngine,
    LoadFailed,
    Loading,
    Located,
    Ready,
    StepReport,
    ToEngine,
    Usage,
    decode_from_engine,
    encode_frame,
)
from replica.engine.request_log import RequestLog
from replica.engine.served_names import ServedNames
from replica.engine.submission import Work, submission
from replica.engine.watchdog import Watchdog
from replica.errors import (
    EngineDied,
    EngineSilent,
    ModelError,
    NotReady,
    Overloaded,
    RequestAborted,
    UnknownRequest,
)
from replica.telemetry import Telemetry

if TYPE_CHECKING:
    from replica.model.tokenizer import Tokenizer

_STOP_TIMEOUT_S: Final = 5.0
_KILL_TIMEOUT_S: Final = 2.0
_ABORT_TIMEOUT_S: Final = 5.0  # a step takes a second or two; a gateway waits for four
_TOMBSTONE_S: Final = 30.0  # longer than any request is on its way

logger = logging.getLogger(__name__)


class Engine:
    """Owns the engine process for as long as ``run`` runs."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        names: ServedNames,
        max_num_live: int,
        launcher: Sequence[str],
        watchdog: Watchdog,
        monotonic_s: Callable[[], float],
    ) -> None:
        """``launcher`` stands before the engine's command line and must exec it."""
        self.names = names
        self.telemetry = Telemetry()
        self.block_mirror = BlockMirror()
        self.stats = EngineStats()
        self.ready: Ready | None = None
        self.tokenizer: Tokenizer | None = None
        self._config = config
        self._max_num_live = max_num_live
        self._launcher = launcher
        self._watchdog = watchdog
        self._monotonic_s = monotonic_s
        self._phase = Phase.STARTING
        self._progress_ratio = 0.0
        self._detail = ""
        self._log = RequestLog()
        self._by_sequence: dict[int, Choice] = {}
        self._next_sequence_id = 1
        self._writer: asyncio.StreamWriter | None = None
        self._became_idle = asyncio.Event()

    @property
    def state(self) -> ReplicaState:
        if self.is_hung and not self.has_failed:
            return ReplicaState(
                phase=Phase.FAILED,
                progress_ratio=0.0,
                model=self.names.model,
                detail=self._hang_detail(),
            )
        return ReplicaState(
            phase=self._phase,
            progress_ratio=self._progress_ratio,
            model=self.names.model,
            detail=self._detail,
        )

    @property
    def is_ready(self) -> bool:
        return self._phase is Phase.READY and not self.is_hung

    @property
    def has_failed(self) -> bool:
        return self._phase is Phase.FAILED

    @property
    def is_hung(self) -> bool:
        """It has work and has not stepped for too long.  It may yet come back."""
        return bool(self._by_sequence) and self._watchdog.is_hungry

    async def run(self) -> None:
        """Start the process and read from it until it ends.

        Every live request has ended then, too.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *self._launcher, sys.executable, "-m", "replica.engine.process",
                str(theirs.fileno()), str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
            )  # fmt: skip
        reader, self._writer = await asyncio.open_connection(sock=ours)
        watch = asyncio.create_task(self._watch(process), name="watchdog")
        try:
            self._send(self._config)
            await self._read(reader)
        finally:
            watch.cancel()
            self._writer.close()
            await self._reap(process)

    def open(self, request_id: str) -> LiveRequest:
        """From here on the request can be aborted.  The caller closes it."""
        now_s = self._monotonic_s()
        is_abort_wanted = self._log.exhume(request_id, now_s)
        request = LiveRequest(request_id, now_s, is_abort_wanted=is_abort_wanted)
        self._log.open(request)
        return request

    def submit(self, request: LiveRequest, work: Work, on_end: OnEnd) -> None:
        """Raises NotReady, Overloaded or RequestAborted.  The caller has proven that it fits."""
        self.check_accepting()
        if request.is_abort_wanted:
            raise RequestAborted("the request was aborted before it began")
        if len(self._by_sequence) + work.num_choices > self._max_num_live:
            raise Overloaded(f"{len(self._by_sequence)} sequences are running or waiting already")
        if not self._by_sequence:
            self._watchdog.feed()  # an idle engine owes nobody a step
        time_left_s = self._time_left_s(request, work.max_time_s)
        first_id = self._next_sequence_id
        self._next_sequence_id += work.num_choices
        request.begin(range(first_id, self._next_sequence_id), on_end)
        self._by_sequence.update({choice.sequence_id: choice for choice in request.choices})
        self._send(submission(work, first_id, time_left_s))

    def _time_left_s(self, request: LiveRequest, max_time_s: float | None) -> float | None:
        """The clock of a request runs from its arrival, tokenizing included."""
        if max_time_s is None:
            return None
        return max_time_s - (self._monotonic_s() - request.arrived_monotonic_s)

    def clear_cache(self) -> None:
        """Of prefixes; effective before any request that is submitted later."""
        self._send(ClearCache())

    def check_accepting(self) -> None:
        """Raises NotReady."""
        if self.has_failed:
            raise NotReady("the engine is not running")
        if self.is_hung:
            raise NotReady(self._hang_detail())
        if not self.is_ready:
            raise NotReady(f"the replica is {self._phase}")

    def request_abort(self, request: LiveRequest) -> None:
        """Idempotent; effective within one step."""
        if request.is_abort_wanted or request.ended.is_set():
            return
        request.is_abort_wanted = True
        for choice in request.choices:
            self._send(Abort(sequence_id=choice.sequence_id))

    def close(self, request: LiveRequest) -> None:
        """Nobody reads it any more.  It stays known until the engine has counted it finally."""
        if not request.choices or request.ended.is_set():
            self._forget(request)
        else:
            self.request_abort(request)

    async def abort(self, request_id: str) -> Usage:
        """The final usage of every request of that id, live or lately finished.

        Raises UnknownRequest, EngineDied or EngineSilent.
        """
        requests = self._log.find(request_id)
        for request in requests:
            self.request_abort(request)
        try:
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                for request in requests:
                    if request.choices:
                        await request.ended.wait()
                    self._forget(request)
        except TimeoutError as exc:
            raise EngineSilent("the engine has not stopped yet: ask again") from exc
        usage = self._log.finished_usage(request_id)
        if usage is None:
            # It may have overtaken its request, which then must not begin.
            self._log.bury(request_id, self._monotonic_s() + _TOMBSTONE_S)
            raise UnknownRequest(f"no request {request_id!r} is known here")
        return usage

    async def drain(self, timeout_s: float, *, abort_timeout_s: float) -> bool:
        """Take nothing new; let what was submitted finish, for so long; abort the rest.

        False: the engine did not even answer the aborts in time.
        """
        self._enter(Phase.DRAINING, 0.0, "")
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_until_idle()
        except TimeoutError:
            logger.warning("drain timed out", extra={"num_running": len(self._by_sequence)})
            for choice in self._by_sequence.values():
                self.request_abort(choice.request)
            with suppress(TimeoutError):
                async with asyncio.timeout(abort_timeout_s):
                    await self._wait_until_idle()
        return not self._by_sequence

    def stop(self) -> None:
        """``run`` returns soon after."""
        if self._writer is not None:
            self._writer.close()

    async def _wait_until_idle(self) -> None:
        while self._by_sequence:
            self._became_idle.clear()
            await self._became_idle.wait()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while not self.has_failed:
                length = int.from_bytes(await reader.readexactly(LENGTH_PREFIX_BYTES), "big")
                await self._take(decode_from_engine(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    async def _take(self, message: FromEngine) -> None:
        match message:
            case StepReport():
                self._take_step(message)
            case Loading():
                self._enter(Phase(message.phase), message.progress_ratio, message.detail)
            case Located(path=path):
                await self._load_tokenizer(Path(path))
            case Ready():
                self.ready = message
                self._enter(Phase.READY, 1.0, message.detail)
                logger.info(
                    "engine ready",
                    extra={"num_blocks": message.num_blocks, "reason": message.detail},
                )
            case LoadFailed(detail=detail):
                self._fail(detail)

    async def _load_tokenizer(self, path: Path) -> None:
        """Before any later message is taken: whoever sees READY finds a tokenizer."""
        try:
            self.tokenizer = await asyncio.to_thread(_tokenizer_at, path)
        except ModelError as exc:
            self._fail(str(exc))

    def _fail(self, detail: str) -> None:
        """No message is read after it: the engine process ends."""
        self._enter(Phase.FAILED, 0.0, detail)
        logger.error("model load failed", extra={"error": detail})

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Ends a process that has hung for good: ``run`` then ends as if it had died."""
        while not (self._by_sequence and self._watchdog.is_starved):  # noqa: ASYNC110 - time passes
            await asyncio.sleep(self._watchdog.poll_interval_s)
        detail = self._hang_detail()
        self._enter(Phase.FAILED, 0.0, detail)
        logger.error("engine hung", extra={"error": detail, "pid": process.pid})
        process.kill()

    def _hang_detail(self) -> str:
        return (
            f"the engine has not stepped for {self._watchdog.silence_s:.0f} s "
            f"with {len(self._by_sequence)} requests to work on"
        )

    def _take_step(self, report: StepReport) -> None:
        self._watchdog.feed()
        self.stats = report.stats
        self.block_mirror.apply(report.block_changes)
        for prompt in report.prompts:
            request = self._by_sequence[prompt.sequence_id].request
            self.block_mirror.prompt_stored(prompt, request.request_id)
        if report.num_batched_tokens:
            self.telemetry.iteration_tokens.observe(report.num_batched_tokens)
        for preempted in report.preempted:
            request = self._by_sequence[preempted.sequence_id].request
            extra = {"reason": preempted.kind, "num_blocks": preempted.num_blocks}
            logger.info("preempted", extra=extra | {"request_id": request.request_id})
        now_s = self._monotonic_s()
        for delta in report.deltas:
            choice = self._by_sequence[delta.sequence_id]
            self._measure(choice, delta, now_s)
            choice.request.push(choice, delta)
            if delta.finish_reason is not None:
                del self._by_sequence[delta.sequence_id]
            if choice.request.ended.is_set():
                self._forget(choice.request)

    def _measure(self, choice: Choice, delta: Delta, now_s: float) -> None:
        """Each choice by itself: as vLLM counts them."""
        telemetry = self.telemetry
        if delta.queue_s is not None:
            telemetry.queue_time_s.observe(delta.queue_s)
        since_arrival_s = now_s - choice.request.arrived_monotonic_s
        if delta.num_tokens and choice.last_token_monotonic_s is None:
            telemetry.time_to_first_token_s.observe(since_arrival_s)
        elif delta.num_tokens and choice.last_token_monotonic_s is not None:
            telemetry.inter_token_latency_s.observe(now_s - choice.last_token_monotonic_s)
        if delta.num_tokens:
            choice.last_token_monotonic_s = now_s
        if delta.finish_reason is not None:
            telemetry.num_finished[delta.finish_reason] += 1
            if delta.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                telemetry.end_to_end_latency_s.observe(since_arrival_s)

    def _forget(self, request: LiveRequest) -> None:
        self._log.close(request)
        if not self._by_sequence:
            self._became_idle.set()

    async def _reap(self, process: asyncio.subprocess.Process) -> None:
        """Whatever happens, the process is killed afterwards and no request waits for it."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_TIMEOUT_S):
                    await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
            with suppress(TimeoutError):  # a process deep in the kernel ends when it comes back
                async with asyncio.timeout(_KILL_TIMEOUT_S):
                    await process.wait()
            exit_code = process.returncode
            logger.info("engine ended", extra={"exit_code": exit_code, "pid": process.pid})
            self._fail_all(f"the engine process ended with {exit_code}")

    def _fail_all(self, detail: str) -> None:
        self._enter(Phase.FAILED, 0.0, detail)
        choices = list(self._by_sequence.values())
        self._by_sequence.clear()
        for choice in choices:
            choice.request.fail(EngineDied("the engine died while it worked on the request"))
            self._forget(choice.request)
        self.block_mirror.close()

    def _enter(self, phase: Phase, progress_ratio: float, detail: str) -> None:
        """Draining is left only by failing, and failing never."""
        if self.has_failed or (self._phase is Phase.DRAINING and phase is not Phase.FAILED):
            return
        self._phase = phase
        self._progress_ratio = progress_ratio
        self._detail = detail

    def _send(self, message: ToEngine) -> None:
        assert self._writer is not None, "run() has not been called"
        self._writer.write(encode_frame(message))


def _tokenizer_at(path: Path) -> "Tokenizer":
    """Raises ModelError."""
    # Not at the top: what it imports need not be there before the engine is started.
    from replica.model.tokenizer_loader import load_tokenizer

    return load_tokenizer(path, lambda: datetime.now(UTC))
