"""The admin API as the command line calls it: bounded, blocking, over the standard library."""

import http.client
import ssl
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from contracts.errors import UNDECODABLE, ContractError
from contracts.policy import PolicyDocument, decode_policy_document, encode_policy_document
from contracts.policy_change import PolicyChange
from pandal.errors import BadOption, EditConflict, NotFound, Unreachable
from pandal.policy_access import CurrentPolicy

T = TypeVar("T")

_TIMEOUT_S: Final = 30.0  # a large document over a slow line
_MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_ENTRIES: Final = 1_000  # of the audit log, at once
_ROOT: Final = "/admin/v1"
_EXPECTED_URL: Final = "--admin: expected http(s)://HOST:PORT"


class _Error(msgspec.Struct):
    message: str


class _ErrorBody(msgspec.Struct):
    error: _Error


class _History(msgspec.Struct):
    entries: list[PolicyChange]


class _Stored(msgspec.Struct):
    version: int


class AdminClient:
    """Raises Unreachable, and what the API's refusal amounts to, with its own words."""

    def __init__(self, url: str, token: str) -> None:
        parts, port = _parts(url)
        assert parts.hostname is not None, "it was looked for"
        if not (token.isascii() and token.isprintable()):
            raise BadOption("PANDAL_ADMIN_TOKEN: expected a token of printable ASCII characters")
        self.where = url
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, port
        self._path = parts.path.rstrip("/") + _ROOT
        self._headers = {"authorization": f"Bearer {token}"}

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[bytes, Mapping[str, str]]:
        """The body and headers (lower case) of a good answer.  ``path``: quoted already."""
        sent = {**self._headers, "content-type": "application/json", **(headers or {})}
        connection = self._connection()
        try:
            connection.request(method, self._path + path, body=body, headers=sent)
            answer = connection.getresponse()
            found = answer.read(_MOST_BYTES)
        except (OSError, UnicodeError, http.client.HTTPException) as exc:
            raise Unreachable(f"{self.where}: {exc or type(exc).__name__}") from exc
        finally:
            connection.close()
        if answer.status >= 300:
            raise self._refusal(answer.status, found)
        return found, {name.lower(): value for name, value in answer.getheaders()}

    # ``PolicyAccess``

    def current(self) -> CurrentPolicy:
        body, headers = self.call("GET", "/policy")
        etag = headers.get("etag")
        return CurrentPolicy(_document(body), None if etag is None else etag.strip('"'))

    def replace(
        self, document: PolicyDocument, *, expected: str | None, action: str, why: str
    ) -> PolicyDocument:
        """``action``: goes before the reason, since all of it is an edit to the API."""
        words = why if action == "edit" else f"{action}: {why}".removesuffix(": ")
        drop_all = {} if document.tenants else {"drop_all": "true"}  # the command has asked
        query = urllib.parse.urlencode({"why": words[:500], **drop_all})
        match = {"if-none-match": "*"} if expected is None else {"if-match": f'"{expected}"'}
        payload = encode_policy_document(document)
        body, _ = self.call("PUT", f"/policy?{query}", payload, match)
        version = decoded(body, _Stored).version
        return msgspec.structs.replace(document, version=version)

    def roll_back(self, number: int, why: str) -> PolicyDocument:
        wanted = msgspec.json.encode({"version": number, "why": why[:500]})
        body, _ = self.call("POST", "/policy/rollback", wanted)
        return self.version(decoded(body, _Stored).version)

    def history(self, limit: int) -> Sequence[PolicyChange]:
        if limit > _MOST_ENTRIES:
            raise BadOption(f"--limit: an admin API tells at most {_MOST_ENTRIES}, got {limit}")
        body, _ = self.call("GET", f"/policy/history?limit={limit}")
        return decoded(body, _History).entries

    def version(self, number: int) -> PolicyDocument:
        body, _ = self.call("GET", f"/policy/versions/{number}")
        return _document(body)

    def _connection(self) -> http.client.HTTPConnection:
        if self._is_tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=_TIMEOUT_S, context=context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)

    def _refusal(self, status: int, body: bytes) -> Exception:
        try:
            words = msgspec.json.decode(body, type=_ErrorBody).error.message
        except UNDECODABLE:
            words = f"it answers {status}"
        kinds = {404: NotFound, 412: EditConflict, 400: BadOption, 422: BadOption}
        return kinds.get(status, Unreachable)(f"{self.where}: {words}")


def _parts(url: str) -> tuple[urllib.parse.SplitResult, int | None]:
    """With its port.  Raises BadOption, which quotes nothing: a part may be a password."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise BadOption(_EXPECTED_URL) from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadOption(_EXPECTED_URL)
    if parts.query or parts.username is not None:
        raise BadOption(_EXPECTED_URL)
    return parts, port


def _document(body: bytes) -> PolicyDocument:
    try:
        return decode_policy_document(body)
    except ContractError as exc:
        raise Unreachable(f"unexpected answer: {exc}") from exc


def decoded(body: bytes, type_: type[T]) -> T:
    """An answer's body.  Raises Unreachable where something else has answered."""
    try:
        return msgspec.json.decode(body, type=type_)
    except UNDECODABLE as exc:
        raise Unreachable(f"unexpected answer: {exc}") from exc
