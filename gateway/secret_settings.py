"""Secrets that both processes of the gateway are given."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, SecretStr

from contracts.environment import beside_certificate
from gateway.resp_address import RespAddress


def _strong(pepper: SecretStr) -> SecretStr:
    num_bytes = len(pepper.get_secret_value().encode())
    if not 16 <= num_bytes <= 64:
        raise ValueError(f"key pepper must hold 16 to 64 bytes, got {num_bytes}")
    return pepper


def _address(url: SecretStr) -> SecretStr:
    RespAddress.parse(url.get_secret_value())
    return url


# 16 to 64 bytes; keys the hashes of API keys and the tenants' salts.
KeyPepper = Annotated[SecretStr, AfterValidator(_strong)]

# unix:///path/store.sock or redis://[user:password@]host:port[/db]; any part may be secret.
StoreUrl = Annotated[SecretStr, AfterValidator(_address)]

# PEM, of the certificate that we show; the file beside it holds that.
OwnKeyFile = Annotated[Path, AfterValidator(beside_certificate)]
