"""Tokens of an identity provider: what is good, and every way of forging one."""

import asyncio
import base64
import hashlib
import hmac
import http.server
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from gateway.admin.callers import Caller, Role
from gateway.admin.oidc import OidcTokens, Provider
from gateway.errors import AdminUnauthorized, Unavailable

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
RSA_KEY = rsa.generate_private_key(65_537, 2_048)
OTHER_RSA_KEY = rsa.generate_private_key(65_537, 2_048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
JWK = {"rsa": "RS256", "ec": "ES256", "next": "RS256"}


def jwk(key_id: str, key: Key) -> dict[str, Any]:
    algorithm = jwt.algorithms.get_default_algorithms()[JWK[key_id]]
    return {**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": key_id, "use": "sig"}


@dataclass
class IdentityProvider:
    url: str = ""
    keys: list[Any] | None = field(default_factory=list)
    num_fetches: int = 0


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    found = IdentityProvider(keys=[jwk("rsa", RSA_KEY), jwk("ec", EC_KEY), {"kty": "odd"}])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the base class's name
            if self.path == "/.well-known/openid-configuration":
                document: dict[str, Any] = {"jwks_uri": f"{found.url}/keys"}
            else:
                found.num_fetches += 1
                document = {"keys": found.keys}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


class Time:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
async def tokens(provider: IdentityProvider) -> AsyncIterator[OidcTokens]:
    found = OidcTokens(provider_of(provider), Time())
    yield found
    found.close()


def provider_of(provider: IdentityProvider, **others: Any) -> Provider:
    usual = {
        "issuer": provider.url,
        "audience": "pandal",
        "jwks_url": None,
        "roles_claim": "roles",
        "role_prefix": "pandal-",
    }
    return Provider(**{**usual, **others})


def signed(
    issuer: str, key: Any = RSA_KEY, key_id: str | None = "rsa", alg: str = "RS256", **claims: Any
) -> str:
    now = int(time.time())
    usual = {
        "iss": issuer,
        "aud": "pandal",
        "sub": "ann",
        "iat": now,
        "exp": now + 600,
        "roles": ["pandal-operator", "other"],
    }
    kept = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    return jwt.encode(kept, key, algorithm=alg, headers=None if key_id is None else {"kid": key_id})


async def test_a_good_token_is_a_caller(tokens: OidcTokens, provider: IdentityProvider) -> None:
    assert await tokens.caller(signed(provider.url)) == Caller("ann", Role.OPERATOR)
    assert await tokens.caller(signed(provider.url, EC_KEY, "ec", "ES256")) == Caller(
        "ann", Role.OPERATOR
    )
    assert provider.num_fetches == 1


def confused(provider: IdentityProvider) -> str:
    """Signed by HMAC, whose secret is the public key that everybody can read (CVE-2015-9235)."""
    public = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    payload = signed(provider.url).split(".")[1]
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"rsa","typ":"JWT"}').rstrip(b"=")
    signing_input = head + b"." + payload.encode()
    mac = hmac.new(public, signing_input, hashlib.sha256).digest()
    return (signing_input + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def unsigned(provider: IdentityProvider) -> str:
    payload = signed(provider.url).split(".")[1]
    head = base64.urlsafe_b64encode(b'{"alg":"none","kid":"rsa"}').rstrip(b"=").decode()
    return f"{head}.{payload}."


FORGED = {
    "another-audience": lambda p: signed(p.url, aud="others"),
    "no-audience": lambda p: signed(p.url, aud=None),
    "another-issuer": lambda p: signed("https://evil.example"),
    "expired": lambda p: signed(p.url, exp=int(time.time()) - 60),
    "without-end": lambda p: signed(p.url, exp=None),
    "not-yet": lambda p: signed(p.url, nbf=int(time.time()) + 600),
    "without-subject": lambda p: signed(p.url, sub=None),
    "another-key": lambda p: signed(p.url, OTHER_RSA_KEY),
    "unknown-key": lambda p: signed(p.url, OTHER_RSA_KEY, "nobody"),
    "no-key-id": lambda p: signed(p.url, key_id=None),
    "a-key-of-another-kind": lambda p: signed(p.url, EC_KEY, "rsa", "ES256"),
    "hmac-with-the-public-key": confused,
    "unsigned": unsigned,
    "cut-off": lambda p: signed(p.url)[:-9],
    "no-token": lambda p: "a.b",
    "no-role": lambda p: signed(p.url, roles=["operator"]),
    "roles-of-another-shape": lambda p: signed(p.url, roles={"pandal-owner": True}),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
async def test_a_forged_token_is_refused(
    tokens: OidcTokens, provider: IdentityProvider, forged: Any
) -> None:
    with pytest.raises(AdminUnauthorized):
        await tokens.caller(forged(provider))


async def test_a_new_key_is_fetched_and_an_old_one_forgotten(provider: IdentityProvider) -> None:
    now = Time()
    tokens = OidcTokens(provider_of(provider), now)
    await tokens.caller(signed(provider.url))
    provider.keys = [jwk("next", OTHER_RSA_KEY)]
    fresh = signed(provider.url, OTHER_RSA_KEY, "next")
    with pytest.raises(AdminUnauthorized):  # keys are not fetched for every name that is made up
        await tokens.caller(fresh)
    now.now_s = 10.0
    assert (await tokens.caller(fresh)).name == "ann"
    with pytest.raises(AdminUnauthorized):
        await tokens.caller(signed(provider.url))
    assert provider.num_fetches == 2
    tokens.close()


async def test_a_role_may_stand_deeper_and_the_highest_counts(provider: IdentityProvider) -> None:
    deep = provider_of(provider, roles_claim="realm_access.roles", role_prefix="")
    tokens = OidcTokens(deep, Time())
    claims = {"roles": None, "realm_access": {"roles": ["viewer", "owner"]}}
    assert (await tokens.caller(signed(provider.url, **claims))).role is Role.OWNER
    tokens.close()


async def test_a_provider_that_is_away_is_told_as_such(provider: IdentityProvider) -> None:
    away = provider_of(provider, jwks_url="http://127.0.0.1:1/keys")
    tokens = OidcTokens(away, Time())
    with pytest.raises(Unavailable):
        await tokens.caller(signed(provider.url))
    tokens.close()
    await asyncio.sleep(0)


async def test_two_that_call_first_at_once_are_let_in(
    tokens: OidcTokens, provider: IdentityProvider
) -> None:
    both = [tokens.caller(signed(provider.url)) for _ in range(2)]
    assert [caller.name for caller in await asyncio.gather(*both)] == ["ann", "ann"]
    assert provider.num_fetches == 1


async def test_a_withdrawn_key_is_not_good_for_long(provider: IdentityProvider) -> None:
    now = Time()
    tokens = OidcTokens(provider_of(provider), now)
    token = signed(provider.url)
    assert (await tokens.caller(token)).name == "ann"
    provider.keys = [jwk("next", OTHER_RSA_KEY), "no object", {"kty": "RSA", "kid": "x", "n": 5}]
    now.now_s = 299.0
    assert (await tokens.caller(token)).name == "ann"
    now.now_s = 300.0
    with pytest.raises(AdminUnauthorized):
        await tokens.caller(token)
    tokens.close()


async def test_a_provider_that_goes_away_is_no_fault_of_the_callers(
    provider: IdentityProvider,
) -> None:
    now = Time()
    tokens = OidcTokens(provider_of(provider), now)
    token = signed(provider.url)
    await tokens.caller(token)
    provider.keys = None  # it answers with something else
    now.now_s = 599.0
    assert (await tokens.caller(token)).name == "ann"
    now.now_s = 610.0
    for _ in range(2):  # also while it is not asked again
        with pytest.raises(Unavailable):
            await tokens.caller(token)
    tokens.close()
