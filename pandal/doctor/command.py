"""``pandal doctor``: the examinations, one after the other."""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Final

import msgspec
import typer

from contracts.names import USAGE_TOPIC
from pandal.datadir import DataDir
from pandal.doctor.disk import disk_findings
from pandal.doctor.finding import Finding, Level, failure, fine
from pandal.doctor.policies import policy_findings
from pandal.errors import PandalError, Unreachable
from pandal.fleet_books import FleetBooks
from pandal.fleet_record import FleetState, running_fleet
from pandal.http_client import get, parse_url
from pandal.options import DataDirOption, JsonOption, directory
from pandal.policy_options import (
    AdminOption,
    admin_client,
    key_access,
    local_quota,
    policy_access,
    quota_address,
)
from pandal.screen import say
from pandal.settings import told_settings

_ANSWER_S: Final = 5.0
_WIDTH: Final = 80
_MARKS: Final = {Level.OK: "ok  ", Level.WARNING: "warn", Level.FAILURE: "FAIL"}


def doctor(
    replica: Annotated[
        list[str] | None,
        typer.Option(help="A replica's URL; repeatable.", show_default="the running fleet's"),
    ] = None,
    billing: Annotated[
        list[str] | None,
        typer.Option(help="The URL of a billing elsewhere, http://HOST:9200; repeatable."),
    ] = None,
    data_dir: DataDirOption = None,
    admin: AdminOption = None,
    as_json: JsonOption = False,
) -> None:
    """Examine store, broker, replicas, policies and disk; say what to do; fail if something is."""
    from pandal.installation import require_extras

    require_extras(("gateway", "billing"))
    from pandal.doctor.billing import billing_url_findings

    found = [
        *_findings(replica or [], data_dir, admin, needs_fleet=not billing),
        *chain.from_iterable(map(billing_url_findings, billing or [])),
    ]
    if as_json:
        say(msgspec.json.encode(found).decode())
    else:
        for finding in found:
            for line in lines(finding):
                say(line)
    if any(finding.level is Level.FAILURE for finding in found):
        raise typer.Exit(1)


def lines(finding: Finding) -> Iterator[str]:
    """For people, on a terminal of the usual width."""
    yield from _wrapped(f"{_MARKS[finding.level]}  {finding.about:<9} ", finding.fact)
    if finding.advice:
        yield from _wrapped(f"{'':16}-> ", finding.advice)


def _wrapped(head: str, text: str) -> Iterator[str]:
    """A word that is longer, as a path, stays whole: it is to be copied."""
    yield from wrap(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _findings(
    replicas: Sequence[str], data_dir: Path | None, admin: str | None, *, needs_fleet: bool
) -> Iterator[Finding]:
    from pandal.doctor.replicas import examine, replica_findings
    from pandal.doctor.valkey import valkey_findings

    local, settings = directory(data_dir), told_settings()
    fleet = running_fleet(local)
    is_elsewhere = admin_client(data_dir, admin) is not None
    store = quota_address(data_dir)
    if fleet is None and store == local_quota(local) and not (replicas or is_elsewhere):
        if needs_fleet:
            yield failure("fleet", f"none is running on {local.root}", "pandal up starts one")
        if not local.policies.exists():
            return
    else:
        yield from asyncio.run(valkey_findings(store))
    if settings.kafka_bootstrap is not None:
        from pandal.doctor.kafka import kafka_findings

        yield from kafka_findings(settings.kafka_bootstrap, settings, USAGE_TOPIC)
    examined = examine(_replicas(replicas, fleet))
    yield from replica_findings(examined)
    served = {model for each in examined for model in each.models} if examined else None
    yield from _policies(data_dir, admin, served)
    if fleet is not None:
        yield from _doors(fleet, local)
    if local.spool.exists():
        from pandal.doctor.books import books_findings

        yield from books_findings(FleetBooks(local), fleet)
    if local.root.exists():
        yield from disk_findings(local.root)


def _replicas(told: Sequence[str], fleet: FleetState | None) -> Mapping[str, str]:
    """By name: those that were named, or the running fleet's."""
    if told:
        return {url: url for url in told}
    return {} if fleet is None else fleet.replica_urls


def _doors(fleet: FleetState, local: DataDir) -> Iterator[Finding]:
    """What people speak to."""
    yield _door("gateway", fleet.gateway_url, "/ready", local)
    if fleet.admin_url is not None:
        its_token = f"; its token is in {local.admin_token}"
        yield _door("admin API", fleet.admin_url, "/health", local, its_token)


def _door(about: str, url: str, path: str, local: DataDir, more: str = "") -> Finding:
    advice = f"its log is in {local.logs}"
    try:
        answer = get(parse_url(url, option="fleet.json"), path, timeout_s=_ANSWER_S)
    except Unreachable as exc:
        return failure(about, str(exc), advice)
    if answer.status == 200:
        return fine(about, f"it answers on {url}{more}")
    return failure(about, f"{url}{path} answers {answer.status}", advice)


def _policies(
    data_dir: Path | None, admin: str | None, served: Collection[str] | None
) -> Iterator[Finding]:
    try:
        document = policy_access(data_dir, admin).current().document
        used = key_access(data_dir, admin).last_used()
    except PandalError as exc:
        yield failure("policies", str(exc), "pandal policy history tells who wrote it")
        return
    yield from policy_findings(document, at=datetime.now(UTC), served=served, last_used=used)
