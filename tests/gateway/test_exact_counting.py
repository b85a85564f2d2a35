"""Prompts counted by the model's tokenizer: exactly, once, and not on the event loop."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from contracts.admission import AdmissionPolicy, TokenCounting
from contracts.usage import Outcome
from gateway.admission.backlog import Backlog
from gateway.admission.part_counter import PartCounter
from gateway.admission.prompt_parts import PartCounts, is_system, split, text_of
from gateway.admission.template_overhead import TemplateOverhead
from gateway.errors import Interrupted
from gateway.prompt import CountedPrompt, TemplateForm
from tests.gateway.conftest import Tenant
from tests.gateway.http_client import chat
from tests.gateway.scene import until
from tests.gateway.upstream_server import PROMPT_TOKENS, Upstream
from tests.support.waiting import eventually

MODEL = "model-a"


class RecordingCounter:
    """A token a word."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.threads: set[str] = set()

    def num_tokens(self, text: str) -> int:
        self.texts.append(text)
        self.threads.add(threading.current_thread().name)
        return len(text.split())


def messages(*contents: str) -> list[bytes]:
    roles = ("user", "assistant")
    spoken = [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]
    return split(json.dumps(spoken).encode())


@pytest.fixture
async def counter() -> AsyncIterator[PartCounter]:
    counter = PartCounter()
    yield counter
    counter.stop()


async def test_a_growing_conversation_costs_its_new_turn(counter: PartCounter) -> None:
    tokenizer, turns = RecordingCounter(), ["hello there", "how are you", "well thanks"]
    for num in (1, 2, 3):
        counted = await counter.num_tokens(tokenizer, MODEL, b"s", messages(*turns[:num]))
        assert counted == sum(len(turn.split()) for turn in turns[:num])
    assert tokenizer.texts == turns
    assert all(name.startswith("token-counter") for name in tokenizer.threads)


async def test_the_same_message_twice_counts_twice_and_is_counted_once(
    counter: PartCounter,
) -> None:
    tokenizer = RecordingCounter()
    parts = messages("one two") * 3
    assert await counter.num_tokens(tokenizer, MODEL, b"s", parts) == 6
    assert tokenizer.texts == ["one two"]


async def test_tenants_and_models_share_no_counts(counter: PartCounter) -> None:
    tokenizer, parts = RecordingCounter(), messages("one two")
    for model, salt in ((MODEL, b"s"), (MODEL, b"other"), ("model-b", b"s")):
        await counter.num_tokens(tokenizer, model, salt, parts)
    assert tokenizer.texts == ["one two"] * 3


async def test_what_is_no_message_is_not_counted(counter: PartCounter) -> None:
    assert await counter.num_tokens(RecordingCounter(), MODEL, b"s", [b'{"role": 1}']) is None


# Where there is too much to count


class HeldCounter(RecordingCounter):
    """Counts nothing before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = threading.Event()
        self.may_count = threading.Event()

    def num_tokens(self, text: str) -> int:
        self.is_asked.set()
        self.may_count.wait(60)
        return super().num_tokens(text)


@pytest.fixture
def held() -> Iterator[HeldCounter]:
    held = HeldCounter()
    yield held
    held.may_count.set()


async def test_a_count_that_comes_too_late_is_none_and_kept_for_the_next_time(
    held: HeldCounter,
) -> None:
    counter, parts = PartCounter(deadline_s=0.01), messages("one two")
    assert await counter.num_tokens(held, MODEL, b"s", parts) is None
    held.may_count.set()
    never = HeldCounter()
    await until(lambda: counter.num_tokens(never, MODEL, b"s", parts).result() == 2)
    never.may_count.set()
    counter.stop()


async def test_a_tenant_leaves_room_for_others(held: HeldCounter) -> None:
    counter = PartCounter(deadline_s=20.0)
    flood = [counter.num_tokens(held, MODEL, b"flood", messages(f"no {n}")) for n in range(9)]
    assert [count.is_done for count in flood] == [False] * 8 + [True]
    assert await flood[8] is None
    quiet = counter.num_tokens(held, MODEL, b"quiet", messages("one"))
    assert not quiet.is_done
    held.may_count.set()
    assert await quiet == 1
    counter.stop()


async def test_for_a_client_that_left_nothing_more_is_counted(held: HeldCounter) -> None:
    counter = PartCounter(deadline_s=20.0)
    count = counter.num_tokens(held, MODEL, b"s", messages("begun", "not begun"))
    await until(held.is_asked.is_set)
    count.fail(Interrupted(Outcome.CLIENT_DISCONNECTED))
    held.may_count.set()
    assert await counter.num_tokens(held, MODEL, b"s", messages("begun")) == 1
    assert "not begun" not in held.texts
    counter.stop()


def test_what_is_being_counted_is_bounded_in_all_and_by_tenant() -> None:
    backlog, megabyte = Backlog(), 1024 * 1024
    assert not backlog.add(b"a", megabyte + 1)
    assert backlog.add(b"a", megabyte)
    assert not backlog.add(b"a", 1)
    assert backlog.add(b"b", megabyte)
    assert not backlog.add(b"c", 1)
    backlog.remove(b"a", megabyte)
    assert backlog.add(b"c", 1)


def test_no_more_than_so_many_counts_are_kept() -> None:
    counts = PartCounts()
    keys = [b"%d" % n for n in range(65_537)]
    for key in keys:
        counts.put(key, 1)
    assert (counts.get(keys[0]), counts.get(keys[1])) == (None, 1)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (b'{"role": "user", "content": "a\\nb"}', "a\nb"),
        (b'{"content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}', "a"),
        (b'{"role": "assistant", "content": null, "tool_calls": [{"id": 1}]}', '[{"id": 1}]'),
        (b'"a prompt"', "a prompt"),
        (b'[{"type": "function"}]', '[{"type": "function"}]'),
    ],
    ids=["message", "parts", "tool-calls", "text", "tools"],
)
def test_what_reaches_the_tokenizer(part: bytes, text: str) -> None:
    assert text_of(part) == text


def test_prompts_are_split_where_they_are_remembered() -> None:
    assert split(b'["a","b"]') == [b'"a"', b'"b"']
    assert split(b'"a"') == [b'"a"']
    assert is_system(b'{"role":"system","content":"x"}')
    assert not is_system(b'"system"')


CHAT = TemplateForm("chat.completions", has_system=False, has_tools=False)


def counted(num_parts: int, form: TemplateForm = CHAT) -> CountedPrompt:
    return CountedPrompt(100, num_parts, form)


def test_a_templates_own_tokens_are_learned_by_length() -> None:
    overhead = TemplateOverhead()
    assert overhead.tokens(MODEL, counted(1)) >= 16, "safe before anything is known"
    overhead.learn(MODEL, counted(1), 110)
    overhead.learn(MODEL, counted(3), 118)
    assert overhead.tokens(MODEL, counted(1)) == 10
    assert overhead.tokens(MODEL, counted(5)) == 26


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(TemplateForm("completions", False, False), id="operation"),
        pytest.param(TemplateForm("chat.completions", True, False), id="system"),
        pytest.param(TemplateForm("chat.completions", False, True), id="tools"),
    ],
)
def test_what_stands_in_another_form_is_learned_apart(other: TemplateForm) -> None:
    """Tools bring a page of instructions, a completion brings nothing."""
    overhead = TemplateOverhead()
    overhead.learn(MODEL, counted(2), 112)
    overhead.learn(MODEL, counted(2, other), 400)
    assert overhead.tokens(MODEL, counted(2)) == 12
    assert overhead.tokens(MODEL, counted(2, other)) == 300


async def test_an_exact_policy_reserves_what_the_engine_will_count(
    make_tenant: Callable[..., Tenant], upstream: Upstream
) -> None:
    words = Tokenizer(WordLevel({"unknown": 0}, unk_token="unknown"))
    words.pre_tokenizer = Whitespace()
    upstream.tokenizer_json = words.to_str()
    tenant = make_tenant(admission=AdmissionPolicy(counting=TokenCounting.EXACT))
    await tenant.accepted()
    assert (await tenant.chat(chat(max_tokens=5))).status == 200  # asks for the tokenizer

    def is_loaded() -> bool:
        return any(line["message"] == "tokenizer loaded" for line in tenant.gateway.log_lines())

    await asyncio.to_thread(eventually, is_loaded, "the tokenizer")
    for _ in range(2):  # the first of them teaches what the template adds
        assert (await tenant.chat(chat(max_tokens=5))).status == 200
    assert tenant.events()[-1].reserved_tokens == PROMPT_TOKENS + 5
    assert (await tenant.chat(chat("three words more", max_tokens=5))).status == 200
    assert tenant.events()[-1].reserved_tokens == PROMPT_TOKENS + 2 + 5
