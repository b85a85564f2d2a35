"""``pandal keys``: keys are given out once, rotated, revoked, and listed without their secrets."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from contracts.api_keys import KeyOrder
from contracts.usage import Endpoint
from pandal.durations import parse_duration
from pandal.errors import BadOption
from pandal.key_access import KeyNews, NewSecret, RemoteKeys
from pandal.options import DataDirOption, JsonOption, directory
from pandal.policy_options import AdminOption, admin_client, key_access
from pandal.screen import one_line, say

if TYPE_CHECKING:
    from pandal.keys import CreatedKey

keys_app = typer.Typer(no_args_is_help=True, help="API keys of tenants.")

TenantOption = Annotated[str, typer.Option(help="a-z, 0-9, '-' and '_'.")]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY-ID", help="As 'pandal keys list' tells.")]


@keys_app.command("create")
def create(
    tenant: TenantOption,
    tier: Annotated[str | None, typer.Option(help="free, standard or gold.")] = None,
    tpm: Annotated[
        int | None, typer.Option(help="Tokens per minute, in place of the tier's.")
    ] = None,
    rpm: Annotated[
        int | None, typer.Option(help="Requests per minute, in place of the tier's.")
    ] = None,
    name: Annotated[str, typer.Option(help="What people call the key.")] = "",
    expires_in: Annotated[str | None, typer.Option(help="90d, 12h.", show_default="never")] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--only-model", help="As replicas call it; for no other; repeatable."),
    ] = None,
    endpoints: Annotated[
        list[Endpoint] | None,
        typer.Option("--only-endpoint", help="It is for no other; repeatable."),
    ] = None,
    data_dir: DataDirOption = None,
    admin: AdminOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a tenant another API key, and the tenant its tier and limits if named."""
    order = KeyOrder(name, _expiry(expires_in), models, endpoints)
    client = admin_client(data_dir, admin)
    if client is not None:
        if (tier, tpm, rpm) != (None, None, None):
            raise BadOption("--tier, --tpm, --rpm: with --admin, use 'pandal policy set'")
        _show_secret(RemoteKeys(client).create(tenant, order), as_json)
        return
    from pandal.keys import create_key, parse_key_request
    from pandal.readiness import wait_until_accepted
    from pandal.served_models import warn_of_unserved

    request = parse_key_request(
        tenant=tenant, tier=tier, tokens_per_minute=tpm, requests_per_minute=rpm, order=order
    )
    local = directory(data_dir)
    local.create()
    created = create_key(local, request)
    note = wait_until_accepted(local, created.api_key)
    warn_of_unserved(models or (), data_dir, admin)
    _show_created(created, as_json)
    say(note, sys.stderr)


@keys_app.command("list")
def list_(
    tenant: TenantOption,
    data_dir: DataDirOption = None,
    admin: AdminOption = None,
    as_json: JsonOption = False,
) -> None:
    """A tenant's keys: what may be known of them, and never the keys themselves."""
    found = key_access(data_dir, admin).keys(tenant)
    if as_json:
        say(msgspec.json.encode(found).decode())
        return
    for key in found:
        say("  ".join(_told(key)))


@keys_app.command()
def rotate(
    key_id: KeyArgument,
    tenant: TenantOption,
    overlap: Annotated[str, typer.Option(help="How long older secrets stay good.")] = "24h",
    data_dir: DataDirOption = None,
    admin: AdminOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a key a new secret; its id, scopes and limits stay, and the old secret for a while."""
    time = parse_duration(overlap, option="--overlap")
    until = datetime.now(UTC) + time
    _show_secret(key_access(data_dir, admin).rotate(tenant, key_id, time), as_json)
    good = f"good until {until:%Y-%m-%d %H:%M:%S}Z" if time else "not good any more"
    say(f"older secrets are {good}", sys.stderr)


@keys_app.command()
def revoke(
    key_id: KeyArgument,
    tenant: TenantOption,
    data_dir: DataDirOption = None,
    admin: AdminOption = None,
) -> None:
    """End a key now, on every gateway; there is no way back."""
    key_access(data_dir, admin).revoke(tenant, key_id)
    say(f"{key_id} is revoked")


def _expiry(expires_in: str | None) -> datetime | None:
    if expires_in is None:
        return None
    span = parse_duration(expires_in, option="--expires-in")
    if not span:
        raise BadOption(f"--expires-in: expected a time to come, got {expires_in!r}")
    return datetime.now(UTC) + span


def _show_created(created: "CreatedKey", as_json: bool) -> None:
    if as_json:
        say(msgspec.json.encode(created).decode())
    else:
        say(
            f"tenant  {created.tenant} ({created.tier}: {created.tokens_per_minute} tokens and "
            f"{created.requests_per_minute} requests per minute)\nkey id  {created.key_id}\n"
            f"key     {created.api_key}"
        )
    if created.tier_before not in (None, created.tier):
        told = f"tier: {created.tier_before} -> {created.tier}, for all keys of {created.tenant}"
        say(told, sys.stderr)
    for warning in created.warnings:
        say(f"warning: {warning}", sys.stderr)


def _show_secret(created: NewSecret, as_json: bool) -> None:
    if as_json:
        say(msgspec.json.encode(created).decode())
    else:
        say(f"key id  {created.key_id}\nkey     {created.api_key}")


def _told(key: KeyNews) -> Iterator[str]:
    yield f"{key.key_id}  {key.key_prefix}..."
    yield _state(key)
    if key.name:
        yield one_line(key.name)
    if key.models is not None:
        yield f"models {','.join(key.models)}"
    if key.endpoints is not None:
        yield f"endpoints {','.join(key.endpoints)}"
    if key.num_retiring:
        yield f"{key.num_retiring} older secret still good"
    if key.created_at is not None:
        yield f"created {key.created_at:%Y-%m-%d}"
    if key.last_used_at is not None:
        yield f"last used {key.last_used_at:%Y-%m-%d %H:%M}Z"


def _state(key: KeyNews) -> str:
    if key.revoked_at is not None and not key.is_in_force:
        return f"revoked {key.revoked_at:%Y-%m-%d}"
    if not key.is_in_force:
        return "expired"
    return "good" if key.expires_at is None else f"good until {key.expires_at:%Y-%m-%d %H:%M}Z"
