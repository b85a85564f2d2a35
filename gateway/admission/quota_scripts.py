"""The quota's scripts, and the commands that call them, packed as far as they are constant."""

import hashlib
from importlib import resources

from contracts.names import (
    TenantId,
    quota_bucket_key,
    quota_budget_key,
    quota_gateways,
    quota_gateways_tag,
    quota_holds_key,
    quota_line_key,
    quota_record_key,
    quota_reservations_key,
    quota_settled_key,
    quota_swept_key,
    quota_turns_key,
)
from gateway.admission.resp import pack, pack_arguments

KEY_BUILDERS = (  # in the order of keys.lua
    quota_bucket_key, quota_budget_key, quota_reservations_key, quota_holds_key, quota_swept_key,
    quota_settled_key, quota_turns_key, quota_line_key, quota_record_key,
)  # fmt: skip
_NUM_PARTS = 3 + len(KEY_BUILDERS)  # EVALSHA, script, number of keys, keys


class Script:
    """Parts that follow each other: Lua's own ``require`` is not there."""

    def __init__(self, *names: str) -> None:
        folder = resources.files("gateway.admission") / "lua"
        self.text = "".join((folder / f"{name}.lua").read_text() for name in names)
        # The protocol's name for a script, not a safeguard.
        sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        self._by_sha = pack_arguments("EVALSHA", sha)
        self._by_text = pack_arguments("EVAL", self.text)

    def command(self, keys: bytes, arguments: bytes, num_arguments: int) -> bytes:
        return b"*%d\r\n%b%b%b" % (_NUM_PARTS + num_arguments, self._by_sha, keys, arguments)

    def command_in_full(self, keys: bytes, arguments: bytes, num_arguments: int) -> bytes:
        """For a store that does not know the script (any more)."""
        return b"*%d\r\n%b%b%b" % (_NUM_PARTS + num_arguments, self._by_text, keys, arguments)


RESERVE = Script("keys", "calendar", "buckets", "budgets", "records", "turns", "reserve")
SETTLE = Script("keys", "buckets", "budgets", "records", "settle")
RENEW = Script("keys", "renew")
_ABSENT_AFTER_MS = 10_000  # without a word: gone
_PRESENCE = (resources.files("gateway.admission") / "lua" / "presence.lua").read_text()


def greeting(name: str) -> list[bytes]:
    """Makes a new connection's store know the scripts, and tries one that writes.

    A store that lets us not (a replica, an access list) shows it now and not to the first client.
    """
    texts = [script.text for script in (RESERVE, SETTLE, RENEW)]
    gateways = quota_gateways(quota_gateways_tag(0))
    sha = hashlib.sha1(_PRESENCE.encode(), usedforsecurity=False).hexdigest()
    return [
        *(pack("SCRIPT", "LOAD", text) for text in (*texts, _PRESENCE)),
        pack("EVALSHA", sha, 1, gateways, name, _ABSENT_AFTER_MS),
    ]


def presence_command(tag: str, name: str) -> bytes:
    """Says that we are here, and asks how many are."""
    return pack("EVAL", _PRESENCE, 1, quota_gateways(tag), name, _ABSENT_AFTER_MS)


def pack_keys(tenant: TenantId) -> bytes:
    """What stands between the script and its arguments."""
    return pack_arguments(len(KEY_BUILDERS), *(build(tenant) for build in KEY_BUILDERS))


def pack_number(number: int) -> bytes:
    digits = b"%d" % number
    return b"$%d\r\n%b\r\n" % (len(digits), digits)


def pack_id(name: str) -> bytes:
    encoded = name.encode()
    return b"$%d\r\n%b\r\n" % (len(encoded), encoded)
