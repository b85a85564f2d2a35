"""``pandal up`` after its checks: start, wait until ready, show it works, serve, stop in order."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import NoReturn, TypeVar

from pandal.autoscaling import run_autoscaler
from pandal.booking import spool_booked
from pandal.child import ChildSpec
from pandal.child_log import rotate
from pandal.credentials import load_or_create_admin_token
from pandal.demo import PROMPT, ask
from pandal.errors import DemoRefused, FleetFailed
from pandal.fleet import (
    ADMIN,
    BILLING,
    GATEWAY,
    GATEWAY_ABORT_S,
    GATEWAY_DRAIN_S,
    GATEWAY_SETTLE_S,
    QUOTA,
    RESPONSE_CACHE,
    admin_child,
    billing_child,
    gateway_child,
    providers_named,
    replica_child,
    valkey_children,
)
from pandal.fleet_news import FleetNews, IsReady
from pandal.fleet_record import FleetRecord, clear_leftovers, remove_fleet_state
from pandal.keys import ensure_demo_key
from pandal.plan import FleetPlan, UpOptions
from pandal.private_file import exclusive
from pandal.readiness import admin_ready, gateway_ready, is_ready, replicas_ready
from pandal.report import show_admin, show_demo_answer, show_ledger_line, show_snippets
from pandal.screen import Screen
from pandal.settings import inherited_environment
from pandal.supervisor import Supervisor
from pandal.surroundings import check_port, check_surroundings, prepare_data_dir
from pandal.valkey import wait_until_serving

# Together under the ten seconds that Ctrl-C promises.
GATEWAY_STOP_PATIENCE_S = GATEWAY_DRAIN_S + GATEWAY_ABORT_S + GATEWAY_SETTLE_S
BOOKING_PATIENCE_S = 1.0
BILLING_PATIENCE_S = 1.0
REPLICA_PATIENCE_S = 1.0
VALKEY_PATIENCE_S = 1.0
_VALKEY_START_PATIENCE_S = 20.0  # a long append-only file is read at some 100 MB a second

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


def start_up(options: UpOptions, screen: Screen) -> int:
    """The exit code.  Raises PandalError; nothing is left running then either."""
    if not options.data_dir.root.exists():  # what is refused leaves none behind
        check_port(options.port)
    prepare_data_dir(options.data_dir)
    with exclusive(options.data_dir):
        clear_leftovers(options.data_dir)
        plan = check_surroundings(options)
        return asyncio.run(_live(plan, screen))


async def _live(plan: FleetPlan, screen: Screen) -> int:
    environment = inherited_environment()
    record = FleetRecord(plan, screen, providers_named(environment))
    supervisor = Supervisor(record, monotonic_s=time.monotonic, sleep=asyncio.sleep)
    launch = Launch(plan, screen, supervisor=supervisor, environment=environment)
    return await launch.run()


class Launch:
    def __init__(
        self,
        plan: FleetPlan,
        screen: Screen,
        *,
        supervisor: Supervisor,
        environment: Mapping[str, str],
    ) -> None:
        self._plan = plan
        self._screen = screen
        self._supervisor = supervisor
        self._environment = environment
        self._hurry = asyncio.Event()

    async def run(self) -> int:
        """The exit code.  Raises FleetFailed; either way no child is left."""
        stop_requests = StopRequests(self._hurry.set)
        stop_requests.listen()
        try:
            interrupted_by = await _first(
                self._start_and_show(), self._supervisor.watch(), stop_requests.wait()
            )
            if interrupted_by is not None:
                return 128 + interrupted_by
            if not self._plan.is_once:
                await _first(
                    self._supervisor.watch(),
                    stop_requests.wait(),
                    self._autoscale(),
                    self._tell_news(),
                )
            return 0
        finally:
            await self._stop()

    async def _start_and_show(self) -> None:
        self._screen.line(f"starting {self._plan.summary}")
        self._screen.line(f"logs in {self._plan.data_dir.logs}")
        credentials = ensure_demo_key(self._plan.data_dir)
        await self._start_valkey()
        for replica in self._plan.first_replicas:
            self._start(replica_child(self._plan, replica, self._environment))
        self._start(billing_child(self._plan, self._environment))
        self._start(
            gateway_child(self._plan, pepper=credentials.key_pepper, inherited=self._environment)
        )
        self._start_admin(credentials.key_pepper)
        await self._wait_until_ready()
        self._supervisor.mark_ready()
        await self._show(credentials.demo_api_key)

    def _start_admin(self, pepper: str) -> None:
        admin = self._plan.admin
        if admin is None:
            return
        token = load_or_create_admin_token(self._plan.data_dir).get_secret_value()
        self._start(
            admin_child(self._plan, admin, pepper=pepper, token=token, inherited=self._environment)
        )

    async def _start_valkey(self) -> None:
        for child in valkey_children(self._plan, self._environment):
            self._start(child)
        try:
            async with asyncio.timeout(_VALKEY_START_PATIENCE_S):
                await wait_until_serving(self._plan.quota_socket)
                await wait_until_serving(self._plan.response_cache_socket)
        except TimeoutError as exc:
            raise FleetFailed(
                f"Valkey does not answer after {_VALKEY_START_PATIENCE_S:g} s "
                f"(logs: {self._plan.data_dir.logs})"
            ) from exc

    def _start(self, child: ChildSpec) -> None:
        rotate(child.log_path)
        self._supervisor.start(child)

    async def _wait_until_ready(self) -> None:
        with self._screen.progress() as view:
            await replicas_ready(self._plan, view)
        await gateway_ready(self._plan.gateway)
        if self._plan.admin is not None:
            await admin_ready(self._plan.admin)

    async def _show(self, api_key: str) -> None:
        self._screen.line(f"ready: {self._plan.served_model} on {self._plan.gateway.url}", "green")
        self._screen.line("")
        self._screen.line(f"> {PROMPT}", "bold")
        await self._ask(api_key)
        if not self._plan.is_once:
            show_admin(self._screen, self._plan)
            show_snippets(self._screen, self._plan, api_key)
            self._screen.line(f"serving on {self._plan.gateway.url} - Ctrl-C stops", "green")

    async def _ask(self, api_key: str) -> None:
        try:
            answer = await asyncio.to_thread(
                ask, self._plan.gateway, api_key, show=self._screen.stream
            )
        except DemoRefused as exc:
            if self._plan.is_once:  # it is all that was asked for
                raise
            self._screen.line(str(exc), "yellow")
            return
        show_demo_answer(self._screen, answer)
        await show_ledger_line(self._screen, self._plan.data_dir.ledger_url, answer)

    async def _autoscale(self) -> NoReturn:
        """As demand asks, if that was asked for."""
        if self._plan.autoscale_from is None:
            await asyncio.Event().wait()
        await run_autoscaler(
            self._plan,
            self._supervisor,
            self._screen,
            start=lambda replica: self._start(
                replica_child(self._plan, replica, self._environment)
            ),
        )

    async def _tell_news(self) -> NoReturn:
        news = FleetNews(
            dict(self._told_children()),
            self._supervisor,
            monotonic_s=time.monotonic,
            tell=self._screen.line,
        )
        await news.run()

    def _told_children(self) -> Iterator[tuple[str, IsReady]]:
        """Those that people ask something of, and that tell themselves whether they may."""
        for replica in self._plan.own_replicas:
            yield replica.name, partial(is_ready, replica.address)
        yield GATEWAY, partial(is_ready, self._plan.gateway)
        if self._plan.admin is not None:
            yield ADMIN, partial(is_ready, self._plan.admin, "/health")

    async def _stop(self) -> None:
        """Each before what it needs: the gateway settles, billing books, then the rest goes."""
        replicas = [replica.name for replica in self._plan.own_replicas]
        first = (GATEWAY,) if self._plan.admin is None else (ADMIN, GATEWAY)
        parts = (*first, BILLING, *(["replicas"] if replicas else []), "Valkey")
        self._screen.line(f"stopping: {', '.join(parts)}")
        stop, hurry = self._supervisor.stop, self._hurry
        await stop(first, patience_s=GATEWAY_STOP_PATIENCE_S, hurry=hurry)
        if self._plan.kafka_bootstrap is None and not hurry.is_set():
            await spool_booked(self._plan.data_dir, patience_s=BOOKING_PATIENCE_S)
        await stop([BILLING], patience_s=BILLING_PATIENCE_S, hurry=hurry)
        await stop(replicas, patience_s=REPLICA_PATIENCE_S, hurry=hurry)
        # Never hurried: the last second of the quota log is worth the milliseconds it takes.
        await stop([QUOTA, RESPONSE_CACHE], patience_s=VALKEY_PATIENCE_S, hurry=asyncio.Event())
        remove_fleet_state(self._plan.data_dir)
        self._screen.line("stopped")


class StopRequests:
    def __init__(self, hurry: Callable[[], None]) -> None:
        self._hurry = hurry
        self._first: signal.Signals | None = None
        self._asked = asyncio.Event()

    def listen(self) -> None:
        """Replaces the process's handlers for as long as the running loop lives."""
        loop = asyncio.get_running_loop()
        for signal_ in _SIGNALS:
            loop.add_signal_handler(signal_, self._receive, signal_)

    async def wait(self) -> signal.Signals:
        await self._asked.wait()
        assert self._first is not None
        return self._first

    def _receive(self, signal_: signal.Signals) -> None:
        if self._first is not None:
            self._hurry()
            return
        self._first = signal_
        self._asked.set()


async def _first(*flows: Awaitable[T]) -> T:
    """Runs all until one ends; cancels the others and returns or raises what that one did."""
    tasks = [asyncio.ensure_future(flow) for flow in flows]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return next(task.result() for task in tasks if task in done)
