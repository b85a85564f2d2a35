"""``pandal top``: the local fleet, looked at again and again."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Annotated

import typer
from rich.live import Live
from rich.text import Text

from contracts.names import TenantId
from gateway.admission.quota_store import QuotaStore
from gateway.resp_address import RespAddress
from pandal.connected_store import running_store
from pandal.datadir import DataDir
from pandal.errors import NotFound
from pandal.fleet_record import FleetState, running_fleet
from pandal.http_client import parse_url
from pandal.keys import read_policies
from pandal.options import DataDirOption, directory
from pandal.screen import SteadyConsole, say
from pandal.top.frame import frame
from pandal.top.sample import Sample, sample

_CALL_DEADLINE_S = 1.0


def top(
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Two looks, one frame, and end.")] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Watch the fleet: replicas, tenants against quotas, refusals and their reasons, scaling."""
    local = directory(data_dir)
    fleet = running_fleet(local)
    if fleet is None:
        raise NotFound(f"no fleet is running on {local.root}; start one with 'pandal up'")
    watch = _Watch(fleet, local)
    with contextlib.suppress(KeyboardInterrupt):
        if once:
            asyncio.run(watch.run(interval, say, num_frames=1))
        else:
            with Live(console=SteadyConsole(), screen=True, auto_refresh=False) as live:

                def show(text: str) -> None:
                    live.update(Text(text), refresh=True)

                asyncio.run(watch.run(interval, show, num_frames=None))


class _Watch:
    def __init__(self, fleet: FleetState, local: DataDir) -> None:
        self._fleet = fleet
        self._local = local
        self._gateway = parse_url(fleet.gateway_url, option="fleet.json")

    async def run(
        self, interval_s: float, show: Callable[[str], None], *, num_frames: int | None
    ) -> None:
        """``num_frames``: None goes on until it is cancelled."""
        address = RespAddress.parse(self._fleet.quota_url)
        async with running_store(address, _CALL_DEADLINE_S) as store:
            before = await self._look(store)
            while num_frames is None or num_frames > 0:
                await asyncio.sleep(interval_s)
                now = await self._look(store)
                show("\n".join(frame(now, before)))
                before = now
                num_frames = None if num_frames is None else num_frames - 1

    async def _look(self, store: QuotaStore) -> Sample:
        document = await asyncio.to_thread(read_policies, self._local.policies)
        tenants = [TenantId(tenant.tenant_id) for tenant in document.tenants]
        replicas = self._fleet.replica_urls
        return await sample(self._gateway, replicas, store, tenants, self._local)
