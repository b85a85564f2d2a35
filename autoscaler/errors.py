"""What can go wrong in the control plane.

AutoscalerError
├── BadPolicy        an operator's figures that cannot be, found before the loop starts
├── ClusterRefused   the cluster did not do, or does not know, what it was asked
└── SourceFailed     one replica or the gateway did not tell its load: unknown, not zero
    └── SourceRefused  it answered, and not with what was asked for
"""


class AutoscalerError(Exception):
    """Of this service."""


class BadPolicy(AutoscalerError):
    """The message names the figure, what was expected and what came."""


class ClusterRefused(AutoscalerError):
    """The next tick observes again and tries again: nothing is retried blindly."""


class SourceFailed(AutoscalerError):
    """The message names the kind of failure, never an answer's text."""


class SourceRefused(SourceFailed):
    """Who answers 503 says that it is not ready; who does not answer says nothing."""
