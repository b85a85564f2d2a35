"""``python -m gateway``: environment -> settings -> server."""

import gc

import uvloop

from contracts.logs import configure_logging
from gateway.app import create_app
from gateway.server import GatewayServer
from gateway.settings import Settings


def main() -> None:
    settings = Settings()
    configure_logging("gateway", settings.log_level)
    uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    async with create_app(settings) as gateway:
        gc.collect()
        gc.freeze()  # what exists now stays: no collection need look at it again
        await GatewayServer(gateway, settings).serve()


if __name__ == "__main__":
    main()
