"""``pandal policy``: read, edit and explain quota policies, with their history."""

import asyncio
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from contracts.api_keys import key_of, tenant_of
from contracts.errors import ContractError, Unknown
from contracts.policy import ApiKeyRecord, PolicyDocument, TenantPolicy
from contracts.policy_change import FieldChange, differences
from contracts.policy_keys import imported, replaced
from contracts.policy_reasons import reasons
from pandal.errors import BadOption, Drifted, NotFound, PandalError
from pandal.options import DataDirOption, JsonOption
from pandal.policy_access import CurrentPolicy, Edit, PolicyAccess, edited
from pandal.policy_assignment import assigned
from pandal.policy_options import AdminOption, WhyOption, policy_access, quota_address
from pandal.policy_yaml import from_yaml, name_of, read_yaml, to_yaml, yaml_text
from pandal.screen import one_line, say
from pandal.served_models import (
    behind_alias,
    models_named,
    providers_named,
    warn_of_unknown,
    warn_of_unserved,
)
from pandal.settings import told_settings

policy_app = typer.Typer(no_args_is_help=True, help="Quota policies: who may ask for how much.")


@policy_app.command()
def get(
    tenant: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
    version: Annotated[int | None, typer.Option(help="As it was then.")] = None,
    data_dir: DataDirOption = None,
    admin: AdminOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the policy, or one tenant's part of it."""
    access = policy_access(data_dir, admin)
    document = _current(access) if version is None else access.version(version)
    if tenant is not None:
        found = _tenant(document, tenant, access)
        document = PolicyDocument(version=document.version, tenants=(found,))
    say(msgspec.json.encode(document).decode() if as_json else to_yaml(document).rstrip())


@policy_app.command("set")
def set_(
    tenant: Annotated[str, typer.Argument()],
    assignments: Annotated[list[str], typer.Argument(help="FIELD=VALUE; FIELD= unsets it.")],
    key: Annotated[str | None, typer.Option(help="Of this key only.")] = None,
    model: Annotated[str | None, typer.Option(help="Of requests to this model only.")] = None,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Count what it would refuse; refuse nothing.")
    ] = False,
    why: WhyOption = "",
    data_dir: DataDirOption = None,
    admin: AdminOption = None,
) -> None:
    """Change a tenant's limits and terms, as in: pandal policy set acme tokens_per_minute=20000."""
    access = policy_access(data_dir, admin)

    def edit(before: PolicyDocument) -> PolicyDocument:
        own = _tenant(before, tenant, access)
        changed = assigned(own, assignments, key=key, model=model, is_shadow=shadow)
        tenants = tuple(changed if t is own else t for t in before.tenants)
        return msgspec.structs.replace(before, tenants=tenants)

    _edit(data_dir, admin, edit, action="set", why=why)


@policy_app.command("edit")
def edit_command(
    why: WhyOption = "",
    data_dir: DataDirOption = None,
    admin: AdminOption = None,
) -> None:
    """Edit the policy in $VISUAL or $EDITOR; nothing is stored if it is no good."""
    access = policy_access(data_dir, admin)
    found = access.current()
    path = _edited_by_hand(to_yaml(found.document))
    try:
        stored = _replace(access, found, yaml_text(path), why)
    except PandalError as exc:
        raise type(exc)(f"{exc}; your text is kept in {path}") from exc
    shutil.rmtree(path.parent)
    if stored is None:
        say("nothing changed")
    else:
        _show_stored(found.document, stored)
        _warn_of_news(found.document, stored, data_dir, admin)


@policy_app.command()
def diff(
    older: Annotated[int, typer.Argument(help="A version.")],
    newer: Annotated[int | None, typer.Argument(help="Another.", show_default="current")] = None,
    data_dir: DataDirOption = None,
    admin: AdminOption = None,
    as_json: JsonOption = False,
) -> None:
    """What changed between two versions."""
    access = policy_access(data_dir, admin)
    after = _current(access) if newer is None else access.version(newer)
    told = differences(access.version(older), after)
    if as_json:
        say(msgspec.json.encode(told).decode())
    else:
        _show(told)


@policy_app.command()
def history(
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 20,
    data_dir: DataDirOption = None,
    admin: AdminOption = None,
    as_json: JsonOption = False,
) -> None:
    """Who changed what, when and why; newest first."""
    access = policy_access(data_dir, admin)
    entries = access.history(limit)
    if not entries:
        _current(access)  # one that was never edited has no history
    if as_json:
        say(msgspec.json.encode(entries).decode())
        return
    for entry in entries:
        at = f"{entry.at:%Y-%m-%d %H:%M:%S}Z"
        told = one_line(f"{entry.who}  {entry.action}  {entry.why}")
        say(f"version {entry.version}  {at}  {told}".rstrip())
        _show(entry.changes, indent="  ")
        if entry.num_changes > len(entry.changes):
            say(f"  and {entry.num_changes - len(entry.changes)} more")


@policy_app.command()
def rollback(
    version: Annotated[int, typer.Argument(help="That is to be in force again.")],
    why: WhyOption = "",
    data_dir: DataDirOption = None,
    admin: AdminOption = None,
) -> None:
    """Put an older version in force again, as a new one; keys stay as they are."""
    access = policy_access(data_dir, admin)
    try:
        stored = access.roll_back(version, why)
    except ContractError as exc:
        raise BadOption(str(exc)) from exc
    _show_stored(access.version(stored.version - 1), stored)


@policy_app.command()
def export(data_dir: DataDirOption = None, admin: AdminOption = None) -> None:
    """Print the policy as YAML, to be kept in a repository."""
    say(to_yaml(_current(policy_access(data_dir, admin))).rstrip())


@policy_app.command("import")
def import_(
    path: Annotated[
        Path, typer.Argument(help="YAML, as export prints it; - reads standard input.")
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Store nothing; fail if it is not what is in force.")
    ] = False,
    drop_all: Annotated[bool, typer.Option("--drop-all", help="No tenant is to be left.")] = False,
    why: WhyOption = "",
    data_dir: DataDirOption = None,
    admin: AdminOption = None,
) -> None:
    """Put the policy of a file in force; keys stay as they are."""
    access = policy_access(data_dir, admin)
    wanted, at = read_yaml(path), datetime.now(UTC)
    before = access.current().document
    put = partial(imported, wanted=wanted, at=at, drops_all=drop_all or check)
    try:
        after = put(before)
        told = differences(before, after)
    except ContractError as exc:
        raise BadOption(f"{name_of(path)}: {exc}; --drop-all says it") from exc
    if check:
        _show(told)
        _warn_of_news(before, after, data_dir, admin)
        if told:
            places = "1 place" if len(told) == 1 else f"{len(told)} places"
            raise Drifted(f"{access.where} differs from {name_of(path)} in {places}")
        say("no drift")
    elif told:
        why = why or f"from {Path(name_of(path)).name}"
        _edit(data_dir, admin, put, action="import", why=why)
    else:
        say("nothing changed")


@policy_app.command("dry-run")
def dry_run_command(
    path: Annotated[
        Path,
        typer.Argument(help="The proposed policy's YAML; - reads standard input."),
    ],
    tenant: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    minutes: Annotated[int, typer.Option(min=1, max=60, help="How far back.")] = 60,
    data_dir: DataDirOption = None,
    admin: AdminOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a proposed policy would have done with the last hour's requests; stores nothing."""
    from pandal.installation import require_extras

    require_extras(("gateway", "local"))
    from pandal.dry_run import dry_run, told

    proposed = read_yaml(path)
    current = _current(policy_access(data_dir, admin))
    names = sorted({t.tenant_id for d in (current, proposed) for t in d.tenants})
    wanted = [name for name in names if tenant in (None, name)]
    if tenant is not None and not wanted:
        raise NotFound(f"there is no tenant {tenant!r} in either policy")
    since_s = time.time() - minutes * 60
    quota = quota_address(data_dir)
    found = asyncio.run(dry_run(quota, current, proposed, wanted, since_s))
    if as_json:
        say(msgspec.json.encode(found).decode())
    else:
        for line in told(found):
            say(line)


@policy_app.command()
def explain(
    tenant: Annotated[str, typer.Argument()],
    model: Annotated[str | None, typer.Option(help="As replicas call it.")] = None,
    key: Annotated[str | None, typer.Option(help="A key's id.")] = None,
    at: Annotated[
        datetime | None, typer.Option(help="UTC, for windows.", show_default="now")
    ] = None,
    data_dir: DataDirOption = None,
    admin: AdminOption = None,
    as_json: JsonOption = False,
) -> None:
    """What applies to a tenant's requests, and whose word each value is."""
    access = policy_access(data_dir, admin)
    document = _current(access)
    policy = _tenant(document, tenant, access)
    if model is not None:
        model = behind_alias(model, data_dir, admin)
        warn_of_unserved([model], data_dir, admin)
    record = None if key is None else _key(policy, key)
    moment = datetime.now(UTC) if at is None else at.replace(tzinfo=UTC)
    found = list(reasons(document, policy, key=record, model=model, at=moment))
    if as_json:
        say(msgspec.json.encode(found).decode())
    else:
        for reason in found:
            say(reason.words)


def _current(access: PolicyAccess) -> PolicyDocument:
    """Raises NotFound: what is not there is no empty policy."""
    found = access.current()
    if found.etag is None:
        raise NotFound(
            f"there is no policy at {access.where} yet; 'pandal keys create' and "
            "'pandal policy import' make one"
        )
    return found.document


def _edit(data_dir: Path | None, admin: str | None, edit: Edit, *, action: str, why: str) -> None:
    """Stores it and tells what it changed.  Raises BadOption for what is no policy."""
    access = policy_access(data_dir, admin)
    before = [access.current().document]

    def noted(document: PolicyDocument) -> PolicyDocument:
        before[0] = document
        return edit(document)

    try:
        stored = edited(access, noted, action=action, why=why)
    except ContractError as exc:
        raise BadOption(str(exc)) from exc
    _show_stored(before[0], stored)
    _warn_of_news(before[0], stored, data_dir, admin)


def _show_stored(before: PolicyDocument, stored: PolicyDocument) -> None:
    changes = differences(before, stored)
    _show(changes)
    say(f"version {stored.version}" + ("" if changes else f": as version {before.version}"))


def _warn_of_news(
    before: PolicyDocument, after: PolicyDocument, data_dir: Path | None, admin: str | None
) -> None:
    """Of names of which nothing was said before."""
    warn_of_unserved(set(models_named(after)) - set(models_named(before)), data_dir, admin)
    news = set(providers_named(after)) - set(providers_named(before))
    warn_of_unknown(news, data_dir, admin)


def _show(changes: Iterable[FieldChange], indent: str = "") -> None:
    for change in changes:
        say(f"{indent}{change.words}")


def _edited_by_hand(text: str) -> Path:
    """In a private folder of its own, for the caller to delete.  Raises BadOption."""
    editor = told_settings().editor
    try:
        command = shlex.split(editor)
    except ValueError as exc:
        raise BadOption(f"{editor}: expected the command of an editor: {exc}") from exc
    path = Path(tempfile.mkdtemp(prefix="pandal-policy-")) / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        code = subprocess.call([*command, str(path)])
    except OSError as exc:
        shutil.rmtree(path.parent)
        raise BadOption(f"{editor}: cannot be started: {exc.strerror}") from exc
    if code != 0:
        raise BadOption(f"{editor} ended with {code}; nothing was stored; your text is in {path}")
    return path


def _replace(
    access: PolicyAccess, found: CurrentPolicy, text: str, why: str
) -> PolicyDocument | None:
    """``None``: nothing is changed.  Raises PandalError."""
    try:
        after = replaced(found.document, from_yaml(text, "the policy"), datetime.now(UTC))
        if not differences(found.document, after):
            return None
        return access.replace(after, expected=found.etag, action="edit", why=why)
    except ContractError as exc:
        raise BadOption(str(exc)) from exc


def _tenant(document: PolicyDocument, name: str, access: PolicyAccess) -> TenantPolicy:
    """Raises NotFound: also who names another folder than he means learns it."""
    try:
        return tenant_of(document, name)
    except Unknown as exc:
        raise NotFound(f"{exc} at {access.where}") from exc


def _key(tenant: TenantPolicy, key_id: str) -> ApiKeyRecord:
    """Raises NotFound."""
    try:
        return key_of(tenant, key_id)
    except Unknown as exc:
        raise NotFound(str(exc)) from exc
