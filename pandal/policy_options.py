"""Options that the commands for policies and keys share: which policy they are about, and why."""

import os
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr

from gateway.resp_address import RespAddress, StoreTls
from pandal.admin_client import AdminClient
from pandal.credentials import read_admin_token
from pandal.datadir import DataDir
from pandal.errors import BadOption
from pandal.fleet_record import running_fleet
from pandal.key_access import KeyAccess, LocalKeys, RemoteKeys
from pandal.options import directory
from pandal.policy_access import LocalPolicies, PolicyAccess
from pandal.settings import told_settings

WhyOption = Annotated[str, typer.Option("--why", help="For the audit log.")]


AdminOption = Annotated[
    str | None,
    typer.Option(
        "--admin",
        help="URL of an admin API, its token in PANDAL_ADMIN_TOKEN; the local fleet's is found.",
        show_default="PANDAL_ADMIN_URL, or else the local fleet's data",
    ),
]


def policy_access(data_dir: Path | None, admin: str | None) -> PolicyAccess:
    client = admin_client(data_dir, admin)
    return LocalPolicies(directory(data_dir).policies) if client is None else client


def key_access(data_dir: Path | None, admin: str | None) -> KeyAccess:
    client = admin_client(data_dir, admin)
    return LocalKeys(directory(data_dir), os.urandom) if client is None else RemoteKeys(client)


def quota_address(data_dir: Path | None) -> RespAddress:
    """Of the store that keeps the record.  Raises BadOption."""
    settings = told_settings()
    url = settings.quota_url
    if url is None or data_dir is not None:
        return local_quota(directory(data_dir))
    try:
        return RespAddress.parse(url.get_secret_value(), StoreTls.of(settings))
    except ValueError as exc:
        raise BadOption(f"PANDAL_QUOTA_URL: {exc}") from exc


def local_quota(local: DataDir) -> RespAddress:
    return RespAddress.parse(f"unix://{local.sockets / 'quota.sock'}")


def admin_client(data_dir: Path | None, admin: str | None) -> AdminClient | None:
    """``None``: the local fleet's data is meant.  Raises BadOption."""
    settings = told_settings()
    url = admin
    if url is None and data_dir is None:
        url = settings.admin_url
    if url is None:
        return None
    token = settings.admin_token
    if token is None:
        token = _token_of_local_fleet(directory(data_dir), url)
    if token is None:
        raise BadOption("PANDAL_ADMIN_TOKEN: expected a token of the admin API")
    return AdminClient(url, token.get_secret_value())


def _token_of_local_fleet(local: DataDir, url: str) -> SecretStr | None:
    """That nobody else gets: only if the address is the fleet's that runs on this machine."""
    fleet = running_fleet(local)
    is_its = fleet is not None and fleet.admin_url == url.rstrip("/")
    return read_admin_token(local) if is_its else None
