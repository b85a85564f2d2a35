"""Where a local fleet keeps its state.

Everything below the data directory survives restarts, except the sockets and ``fleet.json``.
"""

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pandal.errors import BadOption, PreflightFailed

_LONGEST_SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path holds 108, one of them the final NUL
_LONGEST_SOCKET_NAME = "/response-cache.sock"


@dataclass(frozen=True, slots=True)
class DataDir:
    root: Path  # absolute

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def fleet(self) -> Path:
        return self.root / "fleet.json"

    @property
    def scaling(self) -> Path:
        """What the autoscaler decided last."""
        return self.root / "scaling.json"

    @property
    def credentials(self) -> Path:
        return self.root / "credentials.json"

    @property
    def admin_token(self) -> Path:
        """Of the fleet's admin API, and nothing else: to be read by its owner's commands."""
        return self.root / "admin-token"

    @property
    def policies(self) -> Path:
        return self.root / "policies.json"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.db"

    @property
    def ledger_url(self) -> str:
        return f"sqlite:///{self.ledger}"

    @property
    def terms(self) -> Path:
        """Time zones and budgets that were agreed with tenants; need not be there."""
        return self.root / "terms.yaml"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    def usage_journal(self, replica: str) -> Path:
        """What a replica counted itself, to compare with what was billed."""
        return self.usage_journals / replica

    @property
    def usage_journals(self) -> Path:
        """A folder for each replica."""
        return self.root / "replica-usage"

    @property
    def quota(self) -> Path:
        return self.root / "quota"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    @property
    def sockets(self) -> Path:
        """Inside the data directory, unless that would make a socket's path too long to bind."""
        inside = self.root / "run"
        longest = os.fsencode(inside) + _LONGEST_SOCKET_NAME.encode()
        if len(longest) <= _LONGEST_SOCKET_PATH_BYTES:
            return inside
        digest = hashlib.blake2b(os.fsencode(self.root), digest_size=8).hexdigest()
        return Path(tempfile.gettempdir()) / f"pandal-{os.getuid()}-{digest}"

    def create(self) -> None:
        """Raises PreflightFailed if the folders cannot be made, or the sockets' not ours alone."""
        for folder in (self.root, self.spool, self.quota, self.logs, self.sockets):
            _make_folder(folder)
        _make_ours_alone(self.sockets)


def data_dir_at(path: Path) -> DataDir:
    """Raises BadOption for a path that cannot stand in a database's URL."""
    root = path.expanduser().resolve()
    if set(str(root)) & set("?#%"):
        raise BadOption(f"--data-dir: a path without '?', '#' and '%' is needed, got {str(root)!r}")
    return DataDir(root)


def _make_folder(folder: Path) -> None:
    """A folder that its owner has made before, or a link to one elsewhere, is taken as it is."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as exc:
        raise PreflightFailed(f"cannot create {folder}: {exc.strerror}") from exc
    if owner != os.getuid():
        raise PreflightFailed(f"{folder} belongs to user {owner}, not to this one")


def _make_ours_alone(folder: Path) -> None:
    """In a shared temporary directory somebody else may have put something there first.

    Whoever may write to it could put a server of his own in the place of ours.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise PreflightFailed(f"{folder} is not a folder of its own; remove it")
    if status.st_uid != os.getuid():
        raise PreflightFailed(f"{folder} belongs to user {status.st_uid}, not to this one")
    if stat.S_IMODE(status.st_mode) != 0o700:
        folder.chmod(0o700)
