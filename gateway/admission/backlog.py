"""What the counting threads have been given and have not brought back: bounded, also by tenant."""

from collections import Counter
from typing import Final

_MAX_JOBS: Final = 32
_MAX_TENANT_JOBS: Final = 8
_MAX_BYTES: Final = 2 * 1024 * 1024  # a megabyte takes a thread half a second
_MAX_TENANT_BYTES: Final = _MAX_BYTES // 2


class Backlog:
    """Tenants are told apart by whatever names them here."""

    def __init__(self) -> None:
        self._jobs: Counter[bytes] = Counter()
        self._bytes: Counter[bytes] = Counter()

    def add(self, tenant: bytes, num_bytes: int) -> bool:
        """False: there is no room for it."""
        if (
            self._jobs[tenant] >= _MAX_TENANT_JOBS
            or self._jobs.total() >= _MAX_JOBS
            or self._bytes[tenant] + num_bytes > _MAX_TENANT_BYTES
            or self._bytes.total() + num_bytes > _MAX_BYTES
        ):
            return False
        self._jobs[tenant] += 1
        self._bytes[tenant] += num_bytes
        return True

    def remove(self, tenant: bytes, num_bytes: int) -> None:
        self._jobs[tenant] -= 1
        self._bytes[tenant] -= num_bytes
        if not self._jobs[tenant]:
            del self._jobs[tenant], self._bytes[tenant]
