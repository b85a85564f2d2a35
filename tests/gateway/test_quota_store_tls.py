"""The quota store over TLS: gateways' own client, billing's, and what `pandal doctor` says."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from billing.errors import QuotaStoreUnavailable
from billing.quota_store import settled_totals, with_tls
from contracts.names import TenantId, quota_settled_key
from gateway.admission.resp import RespClient, pack
from gateway.resp_address import RespAddress, StoreTls
from pandal.doctor.finding import Level
from pandal.doctor.valkey import valkey_findings
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat
from tests.gateway.processes import Gateway, Policies, Valkey
from tests.gateway.upstream_server import Upstream
from tests.support.certificates import Certificate, RedisFiles, encrypted, self_signed
from tests.support.tls_front import strangers_refused, tls_before
from tests.support.waiting import PATIENCE_S, eventually

TENANT = TenantId("acme")
NO_CERTIFICATE, UNKNOWN = "TLSV13_ALERT_CERTIFICATE_REQUIRED", "TLSV1_ALERT_UNKNOWN_CA"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("known"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def url(valkey: Valkey, certificate: Certificate) -> Iterator[str]:
    with tls_before(valkey.socket_path, certificate) as port:
        yield f"rediss://127.0.0.1:{port}"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


def test_who_is_known_is_spoken_to(
    runner: asyncio.Runner, url: str, certificate: Certificate
) -> None:
    address = RespAddress.parse(url, StoreTls(certificate.path))
    large = b"x" * 300_000  # many of TLS's records

    async def echoed() -> object:
        client = RespClient(address, 5.0)
        running = asyncio.create_task(client.run())
        try:
            await asyncio.wait_for(client.connected.wait(), 60)
            return await client.call(pack("ECHO", large))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    assert runner.run(echoed()) == large


async def refusal(address: RespAddress, caplog: pytest.LogCaptureFixture) -> tuple[str, str]:
    """(the log's reason, its words), of a store that is never connected."""
    client = RespClient(address, 5.0)
    running = asyncio.create_task(client.run())
    try:
        await asyncio.to_thread(eventually, lambda: bool(lines_of(caplog)), "a line in the log")
        assert not client.connected.is_set()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return lines_of(caplog)[0]


def lines_of(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [vars(record) for record in caplog.records if record.levelno == logging.ERROR]
    return [(each["reason"], each["error"]) for each in found if "reason" in each]


def test_a_strangers_certificate_is_refused_and_told(
    runner: asyncio.Runner, url: str, stranger: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    for ca_file in (stranger.path, None):  # None: whom this machine trusts, which is nobody here
        caplog.clear()
        told = runner.run(refusal(RespAddress.parse(url, StoreTls(ca_file)), caplog))
        assert told[0] == "certificate"
        assert "self-signed certificate" in told[1]


async def test_a_certificate_of_another_host_is_refused_and_told(
    valkey: Valkey, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = self_signed(tmp_path, "127.0.0.2")
    with tls_before(valkey.socket_path, other) as port:
        address = RespAddress.parse(f"rediss://127.0.0.1:{port}", StoreTls(other.path))
        reason, words = await refusal(address, caplog)
    assert (reason, "not valid for '127.0.0.1'" in words) == ("certificate", True)


async def test_a_file_without_a_certificate_is_told(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reason, words = await refusal(RespAddress.parse(url, StoreTls(tmp_path / "none.pem")), caplog)
    assert (reason, words) == ("CA file", "No such file or directory")


@pytest.fixture
def strict_url(valkey: Valkey, certificate: Certificate, stranger: Certificate) -> Iterator[str]:
    """Of a store that lets nobody in but with ``stranger``'s certificate."""
    with tls_before(valkey.socket_path, certificate, stranger) as port:
        yield f"rediss://127.0.0.1:{port}"


def test_a_store_that_asks_who_we_are_is_told(
    runner: asyncio.Runner, strict_url: str, certificate: Certificate, stranger: Certificate
) -> None:
    ours = StoreTls(certificate.path, stranger.path, stranger.key)

    async def reached() -> None:
        client = RespClient(RespAddress.parse(strict_url, ours), 5.0)
        running = asyncio.create_task(client.run())
        try:
            await asyncio.wait_for(client.connected.wait(), PATIENCE_S)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    runner.run(reached())


def test_a_store_that_knows_us_not_is_told_of(
    runner: asyncio.Runner,
    certificate: Certificate,
    stranger: Certificate,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with strangers_refused(certificate, stranger) as port:
        for wrong, told in (
            (StoreTls(certificate.path), NO_CERTIFICATE),
            (StoreTls(certificate.path, certificate.path, certificate.key), UNKNOWN),
        ):
            caplog.clear()
            address = RespAddress.parse(f"rediss://127.0.0.1:{port}", wrong)
            assert runner.run(refusal(address, caplog)) == ("TLS", told)


async def test_an_own_certificate_that_cannot_be_read_is_told(
    url: str, certificate: Certificate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = StoreTls(certificate.path, tmp_path / "none.pem")
    reason, words = await refusal(RespAddress.parse(url, tls), caplog)
    assert (reason, words) == ("own certificate", "No such file or directory")


async def test_an_encrypted_key_is_told_and_nobody_asked_for_its_passphrase(
    url: str, certificate: Certificate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = StoreTls(certificate.path, certificate.path, encrypted(certificate, tmp_path))
    reason, words = await refusal(RespAddress.parse(url, tls), caplog)
    assert (reason, words) == ("own certificate", "its key is encrypted")


async def test_billing_and_the_doctor_tell_who_they_are(
    strict_url: str, certificate: Certificate, stranger: Certificate
) -> None:
    access = RedisFiles(certificate.path, stranger.path, stranger.key)
    await asyncio.to_thread(settled_totals, with_tls(strict_url, access), [TENANT])
    found = await valkey_findings(RespAddress.parse(strict_url, StoreTls.of(access)))
    assert {finding.level for finding in found} == {Level.OK}
    nobody = RedisFiles(certificate.path)
    with strangers_refused(certificate, stranger) as port:
        url = f"rediss://127.0.0.1:{port}"
        with pytest.raises(QuotaStoreUnavailable, match="certificate required"):
            await asyncio.to_thread(settled_totals, with_tls(url, nobody), [TENANT])
        (refused,) = await valkey_findings(RespAddress.parse(url, StoreTls.of(nobody)))
    assert refused.advice == NO_CERTIFICATE


async def test_billing_reads_it_and_refuses_a_stranger(
    url: str, certificate: Certificate, stranger: Certificate, valkey: Valkey
) -> None:
    with valkey.client as client:
        client.hset(quota_settled_key(TENANT), mapping={"requests": 3, "tokens": 70})
    known = with_tls(url, RedisFiles(certificate.path))
    account = (await asyncio.to_thread(settled_totals, known, [TENANT]))[TENANT].account
    assert (account.num_requests, account.num_tokens) == (3, 70)
    for wrong in (with_tls(url, RedisFiles(stranger.path)), url):
        with pytest.raises(QuotaStoreUnavailable, match="self-signed certificate"):
            await asyncio.to_thread(settled_totals, wrong, [TENANT])


async def test_the_doctor_looks_through_it_and_says_why_it_cannot(
    url: str, certificate: Certificate, stranger: Certificate
) -> None:
    found = await valkey_findings(RespAddress.parse(url, StoreTls(certificate.path)))
    assert {finding.level for finding in found} == {Level.OK}
    (refused,) = await valkey_findings(RespAddress.parse(url, StoreTls(stranger.path)))
    assert refused.level is Level.FAILURE
    assert (refused.fact.endswith("certificate"), refused.advice) == (
        True,
        "self-signed certificate",
    )


async def test_a_gateway_settles_by_it_and_tells_who_it_is(
    strict_url: str,
    certificate: Certificate,
    stranger: Certificate,
    valkey: Valkey,
    policies: Policies,
    upstream: Upstream,
    tmp_path: Path,
) -> None:
    gateway = Gateway(
        tmp_path,
        quota_url=strict_url,
        policy_file=policies.path,
        upstreams={"replica-0": upstream},
        GATEWAY_REDIS_CA_FILE=str(certificate.path),
        GATEWAY_REDIS_CERTIFICATE_FILE=str(stranger.path),
        GATEWAY_REDIS_CERTIFICATE_KEY_FILE=str(stranger.key),
    )
    gateway.start()
    policies.add("tls-tenant", "sk-tls")
    tenant = Tenant("tls-tenant", "sk-tls", gateway, valkey)
    await tenant.accepted()
    assert (await tenant.chat(chat())).status == 200
    (event,) = tenant.events()
    await asyncio.to_thread(
        eventually, lambda: valkey.settled("tls-tenant").get("requests") == 1, "it to be settled"
    )
    assert valkey.settled("tls-tenant")["tokens"] == event.total_tokens
    assert gateway.stop() == 0
