"""What can end a command, and the exit code it ends with.  Each message is one line for people."""

from typing import ClassVar


class PandalError(Exception):
    exit_code: ClassVar[int] = 1


class BadOption(PandalError):
    """The command line asks for something that cannot be."""

    exit_code: ClassVar[int] = 2


class PreflightFailed(PandalError):
    """Something outside the command is missing; nothing was started."""


class StateUnreadable(PandalError):
    """A file in the data directory does not hold what this version writes."""


class NotFound(PandalError):
    """There is nothing under the name that was asked for."""


class Unreachable(PandalError):
    """A server did not answer as HTTP, or not in time."""


class NotAudited(PandalError):
    """Not all that an audit compares could be read, so it proves neither agreement nor its lack."""

    exit_code: ClassVar[int] = 3


class NothingMeasured(PandalError):
    """A run ended without a request to report."""


class FleetFailed(PandalError):
    """The fleet could not be brought up, or did not do its work."""


class DemoRefused(FleetFailed):
    """The fleet works, and its policies refuse the demo's request."""


class EditConflict(PandalError):
    """Somebody else has edited it meanwhile."""


class Drifted(PandalError):
    """What is in force is not what was expected; the message says what differs."""
