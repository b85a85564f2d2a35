"""``python -m replica``: environment -> Settings -> server."""

import logging
import sys

import uvloop
from pydantic import ValidationError
from pydantic_settings import SettingsError

from contracts.environment import variable_of
from contracts.logs import configure_logging
from replica.serve import serve
from replica.settings import PREFIX, Settings, unread_variables

logger = logging.getLogger("replica")


def main() -> int:
    try:
        settings = Settings()
        faults = dict(unread_variables())
    except (ValidationError, SettingsError) as exc:
        faults = {**_faults(exc), **unread_variables()}
    if faults:
        configure_logging("replica", "info")
        for name, fault in faults.items():
            # No traceback: whoever wrote the setting needs its name and nothing of ours.
            logger.critical("bad setting", extra={"path": name, "error": fault})
        return 2
    configure_logging("replica", settings.log_level)
    return uvloop.run(serve(settings))


def _faults(exc: ValidationError | SettingsError) -> dict[str, str]:
    """By variable, without what was given."""
    if isinstance(exc, SettingsError):  # not JSON, where the setting is a list or a mapping
        return {PREFIX: str(exc)}
    errors = exc.errors(include_input=False, include_url=False)
    return {variable_of(PREFIX, e["loc"] or ("settings",)): e["msg"] for e in errors}


if __name__ == "__main__":
    sys.exit(main())
