"""The secrets of a local fleet: the pepper of its key hashes, the demo tenant's key, and the token
of its admin API."""

import os
from typing import Final

import msgspec
from pydantic import SecretStr

from contracts.api_keys import RandomBytes, new_api_key, new_secret
from contracts.errors import UNDECODABLE
from pandal.datadir import DataDir
from pandal.errors import StateUnreadable
from pandal.private_file import replace_private

_SHORTEST_TOKEN: Final = 32  # that the admin API takes


class Credentials(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="credentials.v1"
):
    key_pepper: str
    demo_api_key: str

    def __repr__(self) -> str:
        return "Credentials(...)"  # an error's text must not give them away

    @property
    def pepper_bytes(self) -> bytes:
        return self.key_pepper.encode()


_decoder = msgspec.json.Decoder(Credentials)


def load_or_create_credentials(
    data_dir: DataDir, random_bytes: RandomBytes = os.urandom
) -> Credentials:
    """Made once per data directory: a new pepper would make every stored key worthless.

    Call it under ``locked``: two first calls at once would make two peppers.
    """
    stored = _read(data_dir)
    if stored is not None:
        return stored
    credentials = Credentials(
        key_pepper=new_secret(random_bytes), demo_api_key=new_api_key(random_bytes)
    )
    replace_private(data_dir.credentials, msgspec.json.encode(credentials))
    return credentials


def renew_demo_key(data_dir: DataDir, random_bytes: RandomBytes = os.urandom) -> Credentials:
    """Another demo key under the same pepper.  Call it under ``locked``."""
    before = load_or_create_credentials(data_dir, random_bytes)
    after = msgspec.structs.replace(before, demo_api_key=new_api_key(random_bytes))
    replace_private(data_dir.credentials, msgspec.json.encode(after))
    return after


def load_or_create_admin_token(
    data_dir: DataDir, random_bytes: RandomBytes = os.urandom
) -> SecretStr:
    """Made once per data directory, in a file of its own.  Needs the directory's lock."""
    token = read_admin_token(data_dir)
    if token is None:
        token = SecretStr(new_secret(random_bytes))
        replace_private(data_dir.admin_token, token.get_secret_value().encode() + b"\n")
    return token


def read_admin_token(data_dir: DataDir) -> SecretStr | None:
    """``None``: no fleet has made one.  Raises StateUnreadable."""
    try:
        token = data_dir.admin_token.read_text("ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise StateUnreadable(f"{data_dir.admin_token} cannot be read") from exc
    if len(token) < _SHORTEST_TOKEN:
        raise StateUnreadable(f"{data_dir.admin_token}: no token; delete it to have another made")
    return SecretStr(token)


def _read(data_dir: DataDir) -> Credentials | None:
    try:
        payload = data_dir.credentials.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return _decoder.decode(payload)
    except UNDECODABLE as exc:
        raise StateUnreadable(f"{data_dir.credentials}: {exc}") from exc
