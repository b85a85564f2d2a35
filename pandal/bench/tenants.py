"""Who sends: tenants with their keys, their share of the traffic and what was promised to them.

Keys come from files or the environment.  They are written into requests and nowhere else.
"""

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from contracts.errors import UNDECODABLE
from pandal.errors import BadOption
from pandal.settings import environment_value

_DEFAULT_NAME = "default"


class Slo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request is good when its first token and its mean time per further token are in time."""

    ttft_s: float = 1.0
    tpot_s: float = 0.1


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    slo: Slo
    weight: float
    api_key: str | None = field(default=None, repr=False)


class _TenantEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    api_key_file: str | None = None  # relative to the file that names it
    api_key_env: str | None = None
    weight: float | None = None
    slo: Slo | None = None


class _TenantsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tenants: list[_TenantEntry]
    zipf_exponent: float | None = None  # instead of weights: the k-th gets k ** -exponent


def single_tenant(slo: Slo, api_key: str | None) -> tuple[Tenant, ...]:
    return (Tenant(_DEFAULT_NAME, slo, 1.0, api_key),)


def read_tenants(path: Path, default_slo: Slo) -> tuple[Tenant, ...]:
    """TOML, or JSON where the name ends so.  Raises BadOption; never quotes a key."""
    file = _decode(path)
    names = [entry.name for entry in file.tenants]
    if not names or len(set(names)) < len(names):
        raise BadOption(f"--tenants: {path}: expected tenants with different names, got {names}")
    return tuple(
        Tenant(
            name=entry.name,
            slo=default_slo if entry.slo is None else entry.slo,
            weight=_weight(entry, rank, file.zipf_exponent),
            api_key=_api_key(entry, path),
        )
        for rank, entry in enumerate(file.tenants, 1)
    )


def read_key_file(path: Path) -> str:
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise BadOption(f"{path}: the API key cannot be read: {type(exc).__name__}") from exc
    return checked_key(key, str(path))


def checked_key(key: str, source: str) -> str:
    """What can stand in a header; what it holds instead is not told."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise BadOption(f"{source}: expected one API key of printable characters")
    return key


def _decode(path: Path) -> _TenantsFile:
    try:
        raw = path.read_bytes().decode()
        content = json.loads(raw) if path.suffix == ".json" else tomllib.loads(raw)
        return msgspec.convert(content, _TenantsFile)
    except OSError as exc:
        raise BadOption(f"--tenants: {path}: {exc.strerror}") from exc
    except (*UNDECODABLE, ValueError) as exc:
        raise BadOption(f"--tenants: {path}: {exc}") from exc


def _weight(entry: _TenantEntry, rank: int, zipf_exponent: float | None) -> float:
    weight = entry.weight
    if weight is None:
        weight = 1.0 if zipf_exponent is None else rank**-zipf_exponent
    if weight <= 0:
        raise BadOption(f"--tenants: {entry.name}: expected a weight above zero, got {weight}")
    return weight


def _api_key(entry: _TenantEntry, path: Path) -> str | None:
    if entry.api_key_file is not None:
        return read_key_file(path.parent / Path(entry.api_key_file).expanduser())
    if entry.api_key_env is None:
        return None
    key = environment_value(entry.api_key_env)
    if key is None:
        raise BadOption(f"--tenants: {entry.name}: {entry.api_key_env} is not set")
    return checked_key(key, entry.api_key_env)
