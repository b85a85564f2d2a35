"""Names that two processes must spell alike: topics, headers, paths, Redis keys."""

import re
from typing import NewType

from contracts.errors import ContractError

TenantId = NewType("TenantId", str)

USAGE_TOPIC = "usage.v1"

HEADER_REQUEST_ID = "x-request-id"
HEADER_EVENT_ID = "x-pandal-event-id"
HEADER_TENANT_ID = "x-pandal-tenant-id"
HEADER_LOCALLY_ADMITTED = "x-pandal-locally-admitted"  # there: the quota's store was away
HEADER_EXPLAIN = "x-pandal-explain"  # a request's: its answer shall say how it was routed
HEADER_ROUTE = "x-pandal-route"
HEADER_SESSION_ID = "x-session-id"  # a client's: its requests should meet the same prefix cache

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


def quota_gateways_tag(number: int) -> str:
    """Their slots differ: each of a cluster's nodes is home to some.  No tenant is called so."""
    return f":gateways-{number}"


def quota_gateways(tag: str) -> str:
    """Sorted set: gateway processes by when they count no longer."""
    return f"{{{tag}}}"


QUOTA_OWED_TAG = ":owed"


def quota_owed() -> str:
    """List, of no tenant: what gateways that died left unsettled.  See ``contracts.debts``."""
    return f"{{{QUOTA_OWED_TAG}}}:settlements"


# The policy document is of no tenant.  Its keys share a slot as well.
POLICY_TAG = ":policy"


def policy_current() -> str:
    """Hash: etag, version and document in force."""
    return f"{{{POLICY_TAG}}}:current"


def policy_versions() -> str:
    """Hash: documents by their version."""
    return f"{{{POLICY_TAG}}}:versions"


def policy_changes() -> str:
    """Stream: who changed what, when and why."""
    return f"{{{POLICY_TAG}}}:changes"


def policy_keys_used() -> str:
    """Hash: by key id, when it was last used (seconds since 1970)."""
    return f"{{{POLICY_TAG}}}:keys-used"


def quota_bucket_key(tenant: TenantId) -> str:
    """Hash: the token and request buckets of all rules, and how many requests are running."""
    return f"{{{tenant}}}:quota:bucket"


def quota_budget_key(tenant: TenantId) -> str:
    """Hash: tokens and money spent, by rule, day and month."""
    return f"{{{tenant}}}:quota:budget"


def quota_reservations_key(tenant: TenantId) -> str:
    """Sorted set: open reservation ids by the server time (ms) at which their lease ends."""
    return f"{{{tenant}}}:quota:reservations"


def quota_holds_key(tenant: TenantId) -> str:
    """Hash: by reservation id, what it holds and where it was taken from."""
    return f"{{{tenant}}}:quota:holds"


def quota_swept_key(tenant: TenantId) -> str:
    """Sorted set: ids that outlived their lease, or were told late, by when they are forgotten."""
    return f"{{{tenant}}}:quota:swept"


def quota_settled_key(tenant: TenantId) -> str:
    """Hash: lifetime totals of settled requests and tokens, for reconciliation with the ledger.

    ``since_ms``: when the store began to count them, by its own clock.
    """
    return f"{{{tenant}}}:quota:settled"


def quota_turns_key(tenant: TenantId) -> str:
    """Sorted set: refused asks by when (ms) they were told to come back."""
    return f"{{{tenant}}}:quota:turns"


def quota_line_key(tenant: TenantId) -> str:
    """Hash: what each of those asks wants, and what all wait for, by limit."""
    return f"{{{tenant}}}:quota:line"


def quota_record_key(tenant: TenantId) -> str:
    """Stream: the last hour's asks and settlements, to be replayed under another policy."""
    return f"{{{tenant}}}:quota:record"


def cached_answer(tenant: TenantId, digest: str) -> str:
    """String, in the response cache's own store: an answer, by what was asked."""
    return f"{{{tenant}}}:answer:{digest}"


def idempotency_record(tenant: TenantId, digest: str) -> str:
    """String, in the response cache's store: who answers it, or the answer.

    ``digest``: of the API key's id and the key.
    """
    return f"{{{tenant}}}:idempotency:{digest}"


def fair_served_key(tenant: TenantId) -> str:
    """Hash: tokens served lately by all gateways, by model."""
    return f"{{{tenant}}}:fair:served"


def quota_rule_name(key_id: str | None, model: str | None, *, is_shadow: bool = False) -> str:
    """Begins the fields of a rule.  No two rules of a tenant build one; its own is ''."""
    if is_shadow:
        return f"~{quota_rule_name(key_id, model)}"
    if key_id is None and model is None:
        return ""
    key = "" if key_id is None else f"={key_id}"
    return f"{len(key)}{key}" + ("" if model is None else f"={model}") + " "
