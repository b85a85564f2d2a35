"""Where the quota store is, and who we are to it."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

_EXPECTED = (
    "expected unix:///path[?db=1], redis://[user:password@]host[:port][/db], "
    "or redis+sentinel://[user:password@]host[:port],host[:port]/service[/db]"
    "[?sentinel_user=user&sentinel_password=password], rediss:// or rediss+sentinel:// over TLS, "
    "with '/', '?', '#', '@' and '&' in a password written as %2F, %3F, %23, %40 and %26"
)
_DATABASE_IN_PATH = re.compile(r"/?(\d*)", re.ASCII)
_DATABASE_IN_QUERY = re.compile(r"(?:db=(\d+))?", re.ASCII)
_SERVICE_IN_PATH = re.compile(r"/([\w.-]+)(?:/(\d+))?", re.ASCII)
_DEFAULT_PORT, _SENTINELS_PORT = 6379, 26379


class TlsSettings(Protocol):
    @property
    def redis_ca_file(self) -> Path | None: ...
    @property
    def redis_certificate_file(self) -> Path | None: ...
    @property
    def redis_certificate_key_file(self) -> Path | None: ...


@dataclass(frozen=True, slots=True)
class StoreTls:
    """Whom a store over TLS is known by, and who we are to it; all of them PEM."""

    ca_file: Path | None = None  # None: whom this machine trusts
    certificate_file: Path | None = None  # with its chain; None: it asks for none
    key_file: Path | None = None  # None: the key is in the certificate's file

    @classmethod
    def of(cls, settings: TlsSettings) -> "StoreTls":
        return cls(
            settings.redis_ca_file,
            settings.redis_certificate_file,
            settings.redis_certificate_key_file,
        )


@dataclass(frozen=True, slots=True)
class RespAddress:
    path: str | None  # of a Unix socket; None: host and port count
    host: str
    port: int
    database: int
    username: str | None
    password: str | None = field(repr=False)
    sentinels: tuple[tuple[str, int], ...] = ()  # who know where ``service`` is; none: it is there
    service: str = ""
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls: StoreTls | None = None  # of the store and its Sentinels; None: without

    @property
    def words(self) -> str:
        """For people; holds no password."""
        return self.path or self.service or f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, url: str, tls: StoreTls = StoreTls()) -> "RespAddress":
        """``tls``: of a store that is spoken to so.

        Raises ValueError, which quotes nothing: any part of a bad URL may be the password's.
        """
        try:
            parts = urlsplit(url)
            address = _READERS.get(parts.scheme, _tcp)(parts)
        except ValueError:
            address = None
        if address is None:
            raise ValueError(_EXPECTED)
        return address if address.tls is None else replace(address, tls=tls)


def _unix(parts: SplitResult) -> RespAddress | None:
    database = _DATABASE_IN_QUERY.fullmatch(parts.query)
    if parts.netloc or not parts.path or parts.fragment or database is None:
        return None
    return RespAddress(unquote(parts.path), "", 0, int(database[1] or 0), None, None)


def _tcp(parts: SplitResult) -> RespAddress | None:
    database = _DATABASE_IN_PATH.fullmatch(parts.path)
    if parts.scheme not in ("redis", "rediss") or parts.query or parts.fragment or database is None:
        return None
    host = parts.hostname or "127.0.0.1"
    host.encode("idna")  # as the resolver will; raises ValueError
    return RespAddress(
        path=None,
        host=host,
        port=_DEFAULT_PORT if parts.port is None else parts.port,
        database=int(database[1] or 0),
        username=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        tls=StoreTls() if parts.scheme == "rediss" else None,
    )


def _behind_sentinels(parts: SplitResult) -> RespAddress | None:
    path = _SERVICE_IN_PATH.fullmatch(parts.path)
    credentials, _, hosts = parts.netloc.rpartition("@")
    if parts.fragment or path is None:
        return None
    query = parts.query.replace("+", "%2B")  # which stands for itself, as in the other parts
    to_sentinels = parse_qs(query, strict_parsing=bool(query))
    if not to_sentinels.keys() <= {"sentinel_user", "sentinel_password"}:
        return None
    each = [urlsplit(f"//{host}") for host in hosts.split(",")]
    sentinels = tuple((e.hostname or "", e.port or _SENTINELS_PORT) for e in each)
    if not all(host for host, _ in sentinels):
        return None
    who = urlsplit(f"//{credentials}@")
    return RespAddress(
        path=None,
        host="",
        port=0,
        database=int(path[2] or 0),
        username=None if not who.username else unquote(who.username),
        password=None if who.password is None else unquote(who.password),
        sentinels=sentinels,
        service=path[1],
        sentinel_username=to_sentinels.get("sentinel_user", [None])[0],
        sentinel_password=to_sentinels.get("sentinel_password", [None])[0],
        tls=StoreTls() if parts.scheme.startswith("rediss") else None,
    )


_READERS = {
    "unix": _unix,
    "redis+sentinel": _behind_sentinels,
    "rediss+sentinel": _behind_sentinels,
}
