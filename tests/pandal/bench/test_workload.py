"""What is sent: seeded, independent of rates, with the prefixes shared that should be."""

import itertools
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pandal.bench.options import (
    DEFAULTS,
    WorkloadKind,
    WorkloadOptions,
    build_workload,
    parse_setting,
    workload_parameters,
)
from pandal.bench.schedule import RequestStyle, Sessions, body_of
from pandal.bench.tenants import Slo, Tenant
from pandal.bench.trace import read_trace
from pandal.bench.workload import Conversation, Lengths, Workload, Zipf
from pandal.errors import BadOption

OWN = [kind for kind in WorkloadKind if kind is not WorkloadKind.TRACE]


def build(kind: WorkloadKind, **given: float) -> Workload:
    return build_workload(WorkloadOptions(kind, given))


def prompt_words(conversation: Conversation, turn: int = 0) -> list[str]:
    return " ".join(m.content for m in conversation.turns[turn].messages).split()


@pytest.mark.parametrize("kind", OWN)
@settings(deadline=None, max_examples=15)
@given(number=st.integers(0, 100_000), seed=st.integers(0, 1_000))
def test_a_conversation_is_a_function_of_seed_and_number(
    kind: WorkloadKind, number: int, seed: int
) -> None:
    small = {"prompt_tokens": 16.0, "output_tokens": 8.0}
    workload = build(kind, **small)
    conversation = workload.conversation(number, seed)
    assert conversation == build(kind, **small).conversation(number, seed)
    assert conversation != workload.conversation(number + 1, seed)
    assert conversation != workload.conversation(number, seed + 1)
    assert len(conversation.turns) == workload.turns_per_conversation


def test_fixed_lengths_are_fixed() -> None:
    workload = build(WorkloadKind.FIXED, prompt_tokens=30, output_tokens=7)
    for number in range(5):
        conversation = workload.conversation(number, 1)
        assert len(prompt_words(conversation)) == 30
        assert conversation.turns[0].max_tokens == 7


def test_lognormal_lengths_spread_around_their_median_and_end() -> None:
    lengths = Lengths(100, 1.0)
    rng = random.Random(5)
    drawn = sorted(lengths.draw(rng) for _ in range(20_001))
    assert drawn[10_000] == pytest.approx(100, rel=0.05)
    assert drawn[16_827] / drawn[10_000] == pytest.approx(2.718, rel=0.1)  # one sigma above
    assert drawn[0] >= 1
    assert drawn[-1] <= 800


def test_zipf_prefers_the_first_by_its_exponent() -> None:
    zipf, rng = Zipf(10, 1.0), random.Random(2)
    drawn = Counter(zipf.draw(rng) for _ in range(30_000))
    assert drawn[0] / drawn[1] == pytest.approx(2.0, rel=0.1)
    even = Counter(Zipf(10, 0.0).draw(rng) for _ in range(30_000))
    assert even[0] / even[9] == pytest.approx(1.0, rel=0.15)


def test_each_turn_of_a_chat_continues_the_one_before() -> None:
    conversation = build(WorkloadKind.CHAT, turns=4).conversation(3, 9)
    turns = conversation.turns
    assert turns[0].pause_s == 0
    assert all(turn.pause_s > 0 for turn in turns[1:])
    for before, after in itertools.pairwise(turns):
        assert after.messages[: len(before.messages)] == before.messages
        assert [m.role for m in after.messages[len(before.messages) :]] == ["assistant", "user"]


def test_a_chat_group_shares_its_system_prompt() -> None:
    workload = build(WorkloadKind.CHAT, groups=3, system_tokens=40)
    systems = Counter(workload.conversation(n, 1).turns[0].messages[0].content for n in range(60))
    assert len(systems) == 3
    assert all(len(text.split()) == 40 for text in systems)


def test_rag_prompts_draw_documents_from_one_library() -> None:
    options = {"documents": 5, "documents_per_prompt": 2, "prompt_tokens": 100}
    workload = build(WorkloadKind.RAG, **options)
    library = {
        document
        for n in range(80)
        for document in workload.conversation(n, 1).turns[0].messages[1].content.split("\n\n")[:-1]
    }
    assert len(library) == 5
    assert all(len(document.split()) == 50 for document in library)


def write_trace(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_a_trace_says_when_and_how_long(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "t.jsonl",
        {"timestamp": 3_000, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 1_000, "input_length": 700, "output_length": 6, "hash_ids": [1, 3]},
        {"at_s": 2.0, "messages": [{"role": "user", "content": "hi"}], "output_tokens": 3},
    )
    trace = read_trace(path)
    assert trace.arrivals(2.0).recorded_s == [1.0, 2.0, 3.0]
    first, said, last = (trace.conversation(n, 1) for n in range(3))
    assert [c.turns[0].max_tokens for c in (first, said, last)] == [6, 3, 5]
    assert said.turns[0].messages[0].content == "hi"
    shared = [a == b for a, b in zip(prompt_words(first), prompt_words(last), strict=False)]
    assert (len(prompt_words(first)), len(prompt_words(last))) == (700, 600)
    assert all(shared[:512])
    assert not all(shared[512:])
    assert trace.conversation(4, 1).turns[0].max_tokens == 3  # it begins again


def test_a_trace_may_name_only_tenants_there_are(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.jsonl", {"prompt_tokens": 1, "tenant": "acme"})
    trace, acme = read_trace(path), Tenant("acme", Slo(), 1.0)
    assert Sessions(trace, [acme, Tenant("b", Slo(), 99.0)], 1).session(0).tenant is acme
    with pytest.raises(BadOption, match="acme"):
        Sessions(trace, [Tenant("b", Slo(), 1.0)], 1)


def test_a_bad_trace_line_is_named_and_not_quoted(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.jsonl", {"at_s": 0, "prompt_tokens": 1}, {"at_s": "secret"})
    with pytest.raises(BadOption, match=r"t\.jsonl:2") as refusal:
        read_trace(path)
    assert "secret" not in str(refusal.value)


def test_parameters_are_the_defaults_and_what_was_given() -> None:
    options = WorkloadOptions(WorkloadKind.CHAT, dict([parse_setting("turns=6")]))
    assert workload_parameters(options) == {**DEFAULTS[WorkloadKind.CHAT], "turns": 6}


@pytest.mark.parametrize("setting", ["turns=0", "turns=1.5", "turns=nan", "tuns=2", "pause_s=-1"])
def test_a_setting_that_cannot_be_is_refused(setting: str) -> None:
    options = WorkloadOptions(WorkloadKind.CHAT, dict([parse_setting(setting)]))
    with pytest.raises(BadOption):
        build_workload(options)


def test_tenants_are_drawn_by_weight_and_the_same_each_time() -> None:
    tenants = [Tenant("a", Slo(), 3.0), Tenant("b", Slo(), 1.0)]
    workload = build(WorkloadKind.FIXED, prompt_tokens=1)
    drawn = [Sessions(workload, tenants, 1).session(n).tenant.name for n in range(4_000)]
    assert drawn == [Sessions(workload, tenants, 1).session(n).tenant.name for n in range(4_000)]
    assert drawn.count("a") / drawn.count("b") == pytest.approx(3.0, rel=0.1)


def test_a_request_asks_for_a_stream_and_its_usage() -> None:
    (turn,) = build(WorkloadKind.FIXED, prompt_tokens=2, output_tokens=9).conversation(0, 1).turns
    body = json.loads(body_of(turn, RequestStyle("m", is_exact_length=False)))
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert (body["model"], body["max_tokens"]) == ("m", 9)
    assert "ignore_eos" not in body
    assert b'"ignore_eos":true' in body_of(turn, RequestStyle("m", is_exact_length=True))
