"""What can go wrong in the control plane.

AutoscalerError
├── BadPolicy        an operator's figures that cannot be, found before the loop starts
├── ClusterRefused   the cluster did not do, or does not know, what it was asked
│   ├── StaleWrite     somebody else has written since
│   ├── Expired        that far back the cluster's history does not go
│   └── Absent         there is no such thing
└── SourceFailed     one replica or the gateway did not tell its load: unknown, not zero
    ├── SourceRefused  it answered, and not with what was asked for
    └── SourceTooLarge its answer is, or would be, more than one answer may be
"""


class AutoscalerError(Exception):
    """Of this service."""


class BadPolicy(AutoscalerError):
    """The message names the figure, what was expected and what came."""


class ClusterRefused(AutoscalerError):
    """The next tick observes again and tries again: nothing is retried blindly."""


class StaleWrite(ClusterRefused):
    """What was read is old: read again before deciding whether to write."""


class Expired(ClusterRefused):
    """A watch cannot go on from there: list again."""


class Absent(ClusterRefused):
    """Deleted meanwhile, or never there."""


class SourceFailed(AutoscalerError):
    """The message names the kind of failure, never an answer's text."""


class SourceRefused(SourceFailed):
    """Who answers 503 says that it is not ready; who does not answer says nothing."""

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status


class SourceTooLarge(SourceFailed):
    """Ask for less at once."""
