"""What people are told of a fault is in plain words."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from contracts.faults import plain_words


class Inner(BaseModel):
    name: str


class Form(BaseModel, extra="forbid"):
    count: Annotated[int, Field(ge=1)] = 1
    mode: Literal["refuse", "shed"] = "shed"
    names: Annotated[list[str], Field(max_length=1)] = []
    label: Annotated[str, Field(pattern="^a$")] = "a"
    inner: Inner = Inner(name="n")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"count": "many"}, "expected a valid integer"),
        ({"count": 0}, "expected greater than or equal to 1"),
        ({"mode": "lose"}, "expected 'refuse' or 'shed'"),
        ({"names": ["a", "b"]}, "expected at most 1 item, got 2"),
        ({"label": "b"}, "expected pattern '^a$'"),
        ({"inner": "n"}, "expected an object"),
        ({"inner": {}}, "it is missing"),
        ({"cuont": 1}, "there is no such member"),
    ],
    ids=str,
)
def test_a_fault_is_told_in_plain_words(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Form(**given)
    (fault,) = caught.value.errors()
    assert plain_words(fault["msg"]) == told


def test_what_is_ours_stays() -> None:
    assert plain_words("needs ca_file beside it") == "needs ca_file beside it"
