"""Every knob of the autoscaler, read once from the environment (``AUTOSCALER_...``)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts import environment

PREFIX: Final = "AUTOSCALER_"


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    # Whose ReplicaPools are followed.  No default: a Role speaks of one namespace.
    namespace: str = Field(min_length=1, max_length=63)
    # None: this runs in a pod, and is its service account.
    kubeconfig: Path | None = None
    # None: the host's name, which is the pod's.  A random part is added: a restart is another one.
    identity: str | None = None
    # Between two looks at a pool.  Shorter than anyone's cold start, longer than a scrape.
    # At most half of what a watch of pods is kept without being asked (pod_watches.UNASKED_S).
    period_s: float = Field(default=10.0, gt=0, le=300)
    # Replicas and gateways answer from memory: one that takes longer does not tell this time.
    scrape_timeout_s: float = Field(default=2.0, gt=0)
    # A Prometheus that scrapes replicas and gateways, by http://host:port/prefix; None: they are
    # asked themselves, which is fresher.  Pods are known by the labels namespace and pod there.
    prometheus_url: str | None = Field(default=None, pattern=r"^http://[^/:]+:\d+(/[^\s?#]*)?$")
    # Says what it would do, of every pool, and does nothing.
    dry_run: bool = False

    # The Role speaks of this name: another one must be told there too.
    lease_name: str = Field(default="pandal-autoscaler", min_length=1)
    # How long nobody scales after the leader's sudden death; shorter than any cold start.
    lease_duration_s: float = Field(default=15.0, gt=0)
    # A leader that could not renew for so long stops; with one request more, inside the duration.
    lease_renew_deadline_s: float = Field(default=9.0, gt=0)
    lease_retry_period_s: float = Field(default=2.0, gt=0)
    # Of one call to the API server.
    request_timeout_s: float = Field(default=4.0, gt=0)

    # The API server ends a watch then, and it is resumed: spreads watches over API servers.
    watch_lifetime_s: float = Field(default=300.0, gt=0)
    # Bookmarks come every minute: a watch that says nothing for longer is dead.
    watch_silence_s: float = Field(default=90.0, gt=0)

    # Of metrics and probes.  0: any free port, told in the log.
    port: int = Field(default=9100, ge=0, le=65_535)
    host: str = "127.0.0.1"  # reachable from this machine only, unless someone says otherwise
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("prometheus_url")
    @classmethod
    def _has_a_port(cls, url: str | None) -> str | None:
        """urlsplit raises ValueError for a port that cannot be."""
        if url is not None and urlsplit(url).port == 0:
            raise ValueError("expected a port from 1 to 65535")
        return url


def unread_variables() -> Mapping[str, str]:
    """Variables of ours that are no setting, each with what to do about it."""
    return environment.unread_variables(os.environ, PREFIX, Settings.model_fields)
