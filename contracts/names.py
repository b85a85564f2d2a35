"""Names that two processes must spell alike: topics, headers, paths, Redis keys."""

import re
from typing import NewType

from contracts.errors import ContractError

TenantId = NewType("TenantId", str)

USAGE_TOPIC = "usage.v1"

HEADER_REQUEST_ID = "x-request-id"

_TENANT_ID = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?")


def tenant_id(value: str) -> TenantId:
    """Raises ContractError unless ``value`` can name a tenant in every key, label and topic."""
    if _TENANT_ID.fullmatch(value) is None:
        raise ContractError(
            "expected a tenant id of 1 to 63 characters a-z, 0-9, '-' and '_', "
            f"beginning and ending with a letter or digit, got {value!r}"
        )
    return TenantId(value)


def spool_source_id(segment: str) -> str:
    """What the ledger calls a spool segment, by its file name."""
    return f"spool/{segment}"


# Redis keys.  The tenant comes first and in braces: one tenant's keys share a cluster slot, so one
# script may touch all of them.  A tenant id holds neither brace nor colon, so no two inputs build
# one key.


def quota_bucket_key(tenant: TenantId) -> str:
    """Hash: the token and request buckets."""
    return f"{{{tenant}}}:quota:bucket"


def quota_reservations_key(tenant: TenantId) -> str:
    """Sorted set: open reservation ids by the server time (ms) at which they expire."""
    return f"{{{tenant}}}:quota:reservations"


def quota_settled_key(tenant: TenantId) -> str:
    """Hash: lifetime totals of settled requests and tokens, for reconciliation with the ledger."""
    return f"{{{tenant}}}:quota:settled"
