"""What people are told of a fault is in plain words, and nothing of what they wrote."""

import datetime
import decimal
import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    AfterValidator,
    AnyHttpUrl,
    AwareDatetime,
    BaseModel,
    DirectoryPath,
    Field,
    FilePath,
    FutureDate,
    HttpUrl,
    IPvAnyAddress,
    Json,
    PastDatetime,
    SecretStr,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from contracts.faults import plain_words

SENT = "sk-sent-1234"
MOMENT = "expected a date and time, such as 2030-01-31T12:00:00Z"


class Inner(BaseModel):
    name: str


class Form(BaseModel, extra="forbid"):
    inner: Inner = Inner(name="n")


@dataclass
class Plain:
    name: str


class Tone(enum.StrEnum):
    LOW = "low"
    HIGH = "high"


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


def refuses(words: str) -> AfterValidator:
    def refuse(given: str) -> str:
        raise ValueError(words)

    return AfterValidator(refuse)


def asserts(given: str) -> str:
    raise AssertionError("a name of its own")


def refuses_in_a_way_of_its_own(given: str) -> str:
    raise PydanticCustomError("unheard_of", "Input should be like {given}", {"given": given})


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        (Form, {SENT: 1}, "there is no such member"),
        (Form, {"inner": {}}, "it is missing"),
        (Form, {"inner": SENT}, "expected an object"),
        (dict, SENT, "expected an object"),
        (Mapping[str, int], 1, "expected an object"),
        (Plain, SENT, "expected an object"),
        (int, SENT, "expected a valid integer"),
        (int, None, "expected a valid integer"),
        (int, 1.5, "expected a valid integer, got a number with a fractional part"),
        (int, "1" * 5_000, "expected an integer with fewer digits"),
        (Annotated[int, Field(ge=1)], 0, "expected greater than or equal to 1"),
        (Annotated[float, Field(gt=0)], -7.25, "expected greater than 0"),
        (Annotated[int, Field(le=90 * 86_400)], 10**9, "expected less than or equal to 7776000"),
        (Annotated[float, Field(lt=1)], 7.25, "expected less than 1"),
        (Annotated[int, Field(multiple_of=5)], 4, "expected a multiple of 5"),
        (float, SENT, "expected a valid number"),
        (float, [], "expected a valid number"),
        (Annotated[float, Field(allow_inf_nan=False)], float("nan"), "expected a finite number"),
        (decimal.Decimal, SENT, "expected a valid number"),
        (decimal.Decimal, [], "expected a valid number"),
        (Annotated[decimal.Decimal, Field(max_digits=3)], "1234", "expected at most 3 digits"),
        (
            Annotated[decimal.Decimal, Field(decimal_places=2)],
            "1.234",
            "expected at most 2 digits after the point",
        ),
        (
            Annotated[decimal.Decimal, Field(max_digits=3, decimal_places=2)],
            "12.3",
            "expected at most 1 digits before the point",
        ),
        (bool, SENT, "expected true or false"),
        (bool, [], "expected true or false"),
        (None, SENT, "expected null"),
        (Literal["refuse", "shed"], SENT, "expected 'refuse' or 'shed'"),
        (Tone, SENT, "expected 'low' or 'high'"),
        (str, 1, "expected a valid string"),
        (SecretStr, 1, "expected a valid string"),
        (Annotated[str, Field(pattern="^a$")], SENT, "expected pattern '^a$'"),
        (Annotated[str, Field(min_length=20)], SENT, "expected a length of at least 20"),
        (Annotated[str, Field(max_length=1)], SENT, "expected a length of at most 1"),
        (bytes, 1, "expected bytes"),
        (Annotated[bytes, Field(max_length=1)], SENT, "expected a length of at most 1"),
        (Annotated[bytes, Field(min_length=20)], SENT, "expected a length of at least 20"),
        (
            Annotated[list[str], Field(max_length=1)],
            [SENT, SENT],
            "expected a length of at most 1, got 2",
        ),
        (
            Annotated[list[str], Field(min_length=2)],
            [SENT],
            "expected a length of at least 2, got 1",
        ),
        (list[int], SENT, "expected a list"),
        (tuple[int, ...], SENT, "expected a list"),
        (set[int], SENT, "expected a list"),
        (frozenset[int], SENT, "expected a list"),
        (Pet, {"kind": SENT}, "expected 'kind' to be one of 'cat', 'dog'"),
        (Pet, {"of": SENT}, "its 'kind' is missing"),
        (Json, SENT, "expected JSON"),
        (Json, 1, "expected JSON"),
        (datetime.date, SENT, "expected a date, such as 2030-01-31"),
        (datetime.date, "2030-01-31T12:00:00", "expected a date, such as 2030-01-31"),
        (FutureDate, "2001-01-31", "expected a time that is yet to come"),
        (datetime.datetime, SENT, MOMENT),
        (datetime.datetime, [], MOMENT),
        (AwareDatetime, "2031-02-01T12:00:00", MOMENT),
        (PastDatetime, "9031-02-01T12:00:00", "expected a time that has passed"),
        (datetime.time, SENT, "expected a time of day, such as 12:00:00"),
        (datetime.timedelta, SENT, "expected a time span, such as PT30S"),
        (AnyHttpUrl, SENT, "expected a valid URL"),
        (AnyHttpUrl, 1, "expected a valid URL"),
        (AnyHttpUrl, f"ftp://{SENT}", "expected a URL that begins with 'http' or 'https'"),
        (HttpUrl, f"http://{SENT * 2_000}", "expected a URL of at most 2083 characters"),
        (Path, 1, "expected a path"),
        (FilePath, f"/{SENT}", "expected a file that is there"),
        (DirectoryPath, f"/{SENT}", "expected a directory that is there"),
        (IPvAnyAddress, SENT, "expected an IP address"),
        (uuid.UUID, SENT, "expected a UUID"),
        (uuid.UUID, 1, "expected a UUID"),
        (Annotated[str, refuses("needs ca_file beside it")], SENT, "needs ca_file beside it"),
        (Annotated[str, refuses("Input should be {ours}")], SENT, "Input should be {ours}"),
        (Annotated[str, AfterValidator(asserts)], SENT, "a name of its own"),
        (Annotated[str, AfterValidator(refuses_in_a_way_of_its_own)], SENT, "it is not valid"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_fault_is_told_in_plain_words(kind: Any, given: object, told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(given)
    (fault,) = caught.value.errors()
    assert plain_words(fault) == told
    assert SENT not in told
