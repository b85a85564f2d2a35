"""``python -m replica``: environment -> Settings -> server."""

import logging
import sys

import uvloop

from contracts.environment import BadSettings, read_settings
from contracts.logs import configure_logging, log_bad_settings
from replica.serve import serve
from replica.settings import PREFIX, Settings, unread_variables

logger = logging.getLogger("replica")


def main() -> int:
    try:
        settings = read_settings(Settings, PREFIX, unread_variables())
    except BadSettings as exc:
        log_bad_settings("replica", exc.faults)
        return 2
    configure_logging("replica", settings.log_level)
    return uvloop.run(serve(settings))


if __name__ == "__main__":
    sys.exit(main())
