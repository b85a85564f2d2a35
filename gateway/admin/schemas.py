"""Bodies of the admin API.  The policy document itself is ``contracts.policy``'s."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from contracts.api_keys import KeyOrder, is_in_force
from contracts.policy import ApiKeyRecord
from contracts.usage import Endpoint

# Without control characters: names are printed on terminals.
_Name = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
_Names = Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=100)]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail


class KeyOrderBody(_Body):
    """``null`` for a scope: whatever the tenant may."""

    name: _Name = ""
    expires_at: AwareDatetime | None = None
    models: _Names | None = None
    endpoints: Annotated[list[Endpoint], Field(max_length=100)] | None = None

    def order(self) -> KeyOrder:
        return KeyOrder(self.name, self.expires_at, self.models, self.endpoints)


class RotationBody(_Body):
    overlap_s: int = Field(default=86_400, ge=0, le=90 * 86_400)  # the old secret's last day


class RollbackBody(_Body):
    version: int = Field(ge=1, le=2**53)
    why: Annotated[str, Field(max_length=500)] = ""


class StoredBody(BaseModel):
    version: int
    etag: str | None


class KeyBody(BaseModel):
    """A key's record: never the key, nor its hash."""

    key_id: str
    key_prefix: str
    name: str
    is_in_force: bool
    created_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    models: Sequence[str] | None
    endpoints: Sequence[str] | None
    num_retiring: int  # secrets from before a rotation that are still good

    @classmethod
    def of(cls, key: ApiKeyRecord, at: datetime, last_used_at: datetime | None) -> "KeyBody":
        return cls(
            key_id=key.key_id,
            key_prefix=key.key_prefix,
            name=key.name,
            is_in_force=is_in_force(key, at),
            created_at=key.created_at,
            expires_at=key.expires_at,
            revoked_at=key.revoked_at,
            last_used_at=last_used_at,
            models=key.models,
            endpoints=key.endpoints,
            num_retiring=sum(secret.expires_at > at for secret in key.retiring),
        )


class CreatedKeyBody(KeyBody):
    api_key: str  # shown here and nowhere again


class KeyListBody(BaseModel):
    keys: Sequence[KeyBody]


class KeysUsedBody(BaseModel):
    last_used_at: dict[str, datetime]  # by key id


class ReasonBody(BaseModel):
    field: str
    value: Any  # JSON
    because: str
    words: str


class ReasonListBody(BaseModel):
    reasons: Sequence[ReasonBody]


class ChangeBody(BaseModel):
    path: str
    before: Any  # JSON
    after: Any  # JSON


class HistoryEntryBody(BaseModel):
    version: int
    etag: str
    at: datetime
    who: str
    action: str
    why: str
    num_changes: int
    changes: Sequence[ChangeBody]


class HistoryBody(BaseModel):
    entries: Sequence[HistoryEntryBody]


class DifferencesBody(BaseModel):
    changes: Sequence[ChangeBody]


class CallerBody(BaseModel):
    name: str
    role: str
