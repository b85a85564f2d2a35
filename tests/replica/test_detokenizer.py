from hypothesis import given
from hypothesis import strategies as st

from replica.engine.detokenizer import Detokenizer

BYTES = [bytes([i]) for i in range(256)]


def detokenize(payload: bytes, stop: list[str]) -> tuple[str, list[str]]:
    """(the whole text, the pieces it came in), one byte a token."""
    detokenizer = Detokenizer(BYTES, stop)
    pieces: list[str] = []
    for index, byte in enumerate(payload):
        result = detokenizer.push(byte, may_stop=True, is_last=index == len(payload) - 1)
        pieces.append(result.text)
        if result.is_stopped:
            break
    return "".join(pieces), pieces


@given(st.binary(max_size=60))
def test_pieces_join_to_the_text_of_all_bytes(payload: bytes) -> None:
    assert detokenize(payload, [])[0] == payload.decode(errors="replace")


@given(st.text(min_size=1, max_size=20))
def test_no_piece_holds_a_part_of_a_character(text: str) -> None:
    payload = text.encode(errors="ignore")
    _, pieces = detokenize(payload, [])
    assert "\ufffd" not in "".join(pieces).replace("\ufffd", "", text.count("\ufffd"))


@given(st.text("abc", max_size=40), st.lists(st.text("abc", min_size=1, max_size=4), max_size=4))
def test_text_ends_where_the_first_complete_stop_begins(text: str, stops: list[str]) -> None:
    matches = [(text.index(s) + len(s), text.index(s)) for s in stops if s in text]
    end = min(matches)[1] if matches else len(text)
    assert detokenize(text.encode(), stops)[0] == text[:end]


def test_a_character_of_three_tokens_comes_once_and_whole() -> None:
    _, pieces = detokenize("a語。".encode(), [])
    assert pieces == ["a", "", "", "語", "", "", "。"]
    assert detokenize("a語。".encode(), ["。"]) == ("a語", ["a", "", "", "語", "", "", ""])
    assert detokenize("a語".encode()[:-1], [])[0] == "a\ufffd", "cut off: said once, at the end"


def test_only_a_prefix_of_a_stop_is_held_back() -> None:
    _, pieces = detokenize(b"the own fog", ["own fox"])
    assert pieces[:4] == ["t", "h", "e", " "]
    assert pieces[-1] == "own fog"


def test_shorter_stop_inside_a_longer_one_wins_by_position() -> None:
    assert detokenize(b"one two three", ["two three", "wo"])[0] == "one t"


def test_stop_after_the_last_token_is_still_cut() -> None:
    assert detokenize(b"abcX", ["X"])[0] == "abc"
