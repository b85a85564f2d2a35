"""``pandal up`` after preflight: the checks that need the lock, then one fleet's life under it."""

import asyncio
import time

from pandal.datadir import exclusive
from pandal.fleet_record import FleetRecord, clear_leftovers
from pandal.launch import Launch
from pandal.plan import FleetPlan, UpOptions
from pandal.screen import Screen
from pandal.settings import inherited_environment
from pandal.supervisor import Supervisor
from pandal.surroundings import check_surroundings, prepare_data_dir


def start_up(options: UpOptions, screen: Screen) -> int:
    """The exit code.  Raises PandalError; nothing is left running then either."""
    prepare_data_dir(options.data_dir)
    with exclusive(options.data_dir):
        clear_leftovers(options.data_dir)
        plan = check_surroundings(options)
        return asyncio.run(_live(plan, screen))


async def _live(plan: FleetPlan, screen: Screen) -> int:
    supervisor = Supervisor(
        FleetRecord(plan, screen), monotonic_s=time.monotonic, sleep=asyncio.sleep
    )
    launch = Launch(plan, screen, supervisor=supervisor, environment=inherited_environment())
    return await launch.run()
