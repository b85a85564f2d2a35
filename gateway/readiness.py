"""Whether new work should come here."""

from collections.abc import Sequence

from gateway.admission.redis_limiter import RedisLimiter
from gateway.outbox.spool import Spool
from gateway.policies import LivePolicies
from gateway.routing.pool import ReplicaPool


class Readiness:
    """Asked by probes; told when the port is listened at, and when the drain begins."""

    def __init__(
        self, policies: LivePolicies, pool: ReplicaPool, limiter: RedisLimiter, spool: Spool
    ) -> None:
        self._policies = policies
        self._pool = pool
        self._limiter = limiter
        self._spool = spool
        self.is_listening = False
        self.is_draining = False

    def reasons_not_ready(self) -> Sequence[str]:
        checks = {
            "the gateway is draining": self.is_draining,
            "no policy is loaded": self._policies.current is None,
            "no replica is ready": self._pool.num_ready == 0,
            "the quota store is not reachable": not self._limiter.can_decide,
            "the spool cannot be written": self._spool.is_behind,
            "the spool is full, too much waits to be shipped": self._spool.is_held_back,
        }
        return [reason for reason, is_true in checks.items() if is_true]

    def reasons_clients_meet(self) -> Sequence[str]:
        """None, while no client can come here."""
        return self.reasons_not_ready() if self.is_listening else ()
