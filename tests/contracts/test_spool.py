"""Spool lines: what is torn or altered is never taken for a record."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import ContractError
from contracts.spool import frame, parse_segment_name, segment_name, unframe

payloads = st.binary(max_size=200).filter(lambda payload: b"\n" not in payload)


def test_golden_line() -> None:
    assert frame(b'{"a":1}') == b'561bacaf {"a":1}\n'


@given(payloads)
def test_a_framed_payload_comes_back(payload: bytes) -> None:
    assert unframe(frame(payload)) == payload


@given(payloads, st.data())
def test_a_torn_line_is_refused(payload: bytes, data: st.DataObject) -> None:
    line = frame(payload)
    torn = line[: data.draw(st.integers(0, len(line) - 1))]
    with pytest.raises(ContractError):
        unframe(torn)


@given(payloads.filter(bool), st.data())
def test_a_flipped_bit_is_refused(payload: bytes, data: st.DataObject) -> None:
    line = bytearray(frame(payload))
    index = data.draw(st.integers(0, len(line) - 1))
    line[index] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ContractError):
        unframe(bytes(line))


def test_a_newline_cannot_be_smuggled_in() -> None:
    with pytest.raises(ContractError):
        frame(b"a\nb")


def test_segment_names_sort_in_the_order_of_writing() -> None:
    names = [segment_name("01", 2), segment_name("01", 10), segment_name("02", 0)]
    assert names == sorted(names)
    assert parse_segment_name(names[1]) == ("01", 10)


@pytest.mark.parametrize("name", ["01-1.spool", "01-000001.log", "../x-000001.spool", "A-000001"])
def test_other_files_are_not_segments(name: str) -> None:
    with pytest.raises(ContractError):
        parse_segment_name(name)
