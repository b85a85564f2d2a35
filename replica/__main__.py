"""``python -m replica``: environment -> Settings -> server."""

import logging
import sys

import uvloop
from pydantic import ValidationError

from contracts.logs import configure_logging
from replica.serve import serve
from replica.settings import Settings

logger = logging.getLogger("replica")


def main() -> int:
    try:
        settings = Settings()
    except ValidationError as exc:
        configure_logging("replica", "error")
        for error in exc.errors(include_input=False, include_url=False):
            name = ".".join(map(str, error["loc"])) or "settings"
            # No traceback: whoever wrote the setting needs its name and nothing of ours.
            logger.error("bad setting", extra={"path": name, "error": error["msg"]})  # noqa: TRY400
        return 2
    configure_logging("replica", settings.log_level)
    return uvloop.run(serve(settings))


if __name__ == "__main__":
    sys.exit(main())
