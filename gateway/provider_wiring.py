"""The part of the composition root that is about servers of other owners."""

import errno
import re
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from gateway.providers.credential import Credential
from gateway.providers.provider import Api, Provider, provider_headers
from gateway.routing.outside import Outside
from gateway.routing.replica import Replica
from gateway.settings import ProviderAddress, Settings
from gateway.upstream.replica_client import ReplicaClient, Timeouts

_WORD = re.compile(rb"[!-~]+")


def wire_providers(settings: Settings) -> Mapping[str, Provider]:
    """By name.  Whoever calls closes their clients.  Raises OSError where a key
    cannot be read, or is none."""
    return {address.name: _provider(settings, address) for address in settings.providers}


def members_of_pools(providers: Mapping[str, Provider]) -> list[Replica]:
    return [provider.replica for provider in providers.values() if provider.models]


def _provider(settings: Settings, address: ProviderAddress) -> Provider:
    timeouts = Timeouts(
        connect_s=settings.connect_timeout_s,
        head_s=settings.head_timeout_s,
        idle_s=settings.idle_timeout_s,
        keep_alive_s=settings.upstream_keep_alive_s,
    )
    url = urlsplit(address.url)
    tls = ssl.create_default_context() if url.scheme == "https" else None
    api = Api(address.api)
    client = ReplicaClient(address.name, address.url, timeouts, tls)
    replica = Replica(client, frozenset(address.models), Outside(address.weight))
    key = _key(address)
    path, headers = url.path.rstrip("/"), provider_headers(api, key)
    return Provider(api, replica, path, headers, Credential(key), address.models)


def _key(address: ProviderAddress) -> str:
    if address.api_key is not None:
        return address.api_key.get_secret_value()
    path = address.api_key_file
    assert path is not None
    key = path.read_bytes().strip()
    if not _WORD.fullmatch(key):  # it would end the header, or be none
        raise OSError(errno.EINVAL, "expected a key: one word of visible ASCII", str(path))
    return key.decode()
