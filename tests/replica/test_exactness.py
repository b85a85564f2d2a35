"""Greedy decoding gives the tokens that transformers gives, in float32, however it is scheduled
and whatever computes it.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from replica.engine.backend import choose_backend
from replica.engine.kv_blocks import KvOptions
from replica.engine.launcher import InlineLauncher, ModelRunner, ThreadLauncher
from replica.engine.messages import CpuBackend, SamplingParams
from replica.engine.scheduler import SchedulerLimits
from replica.model.llama import LlamaModel
from replica.model.loader import open_model
from replica.model.tokenizer import Tokenizer
from replica.settings import Settings
from tests.replica.engine_harness import EngineHarness, NewLauncher

pytestmark = pytest.mark.timeout(600)  # two minutes of arithmetic, more where cores are shared

NUM_NEW_TOKENS = 6
NUM_BLOCKS = 600  # enough for every prompt to stay cached under its own salt
BLOCK_SIZE = 16
LARGE_STEP_TOKENS = 512
TOPICS = [
    "The capital of France is", "def fibonacci(n):", "Once upon a time,", "2 + 2 =",
    "Water boils at", "Dear Sir or Madam,", "import numpy as np\n", "The three laws of robotics",
    "In 1969, the", "SELECT name FROM", "Ingredients: flour,", "The mitochondria",
    "To be, or not to be,", "日本の首都は", "Le chat est", "Roses are red,", "<div class=",
    "Q: Why is the sky blue?\nA:", "The stock market", "🦜 parrots", "A", "1, 1, 2, 3, 5, 8,",
    "Chapter 1\n\n", "git commit -m", "She opened the door and",
]  # fmt: skip
SHARED_PREFIX = "You are a careful assistant who answers in one short sentence. " * 3


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that spin for each other take ten times as long where tests share the cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def reference(model_path: Path) -> LlamaForCausalLM:
    """transformers' model with the weights as transformers reads them: none of our code.

    ``from_pretrained`` would do the same, but asks for accelerate.
    """
    parsed = load_gguf_checkpoint(model_path, return_tensors=False)
    model = LlamaForCausalLM(LlamaConfig(**parsed["config"])).float()
    tensors = load_gguf_checkpoint(
        model_path, return_tensors=True, model_to_load=model, torch_dtype=torch.float32
    )["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # tied to the embedding
    model.tie_weights()
    return model.eval()


@pytest.fixture(scope="module")
def model(model_path: Path) -> LlamaModel:
    return open_model(model_path).load(lambda ratio: None)


@pytest.fixture(scope="module")
def every_prompt(tokenizer: Tokenizer) -> list[list[int]]:
    """50 of mixed lengths: bare, and behind a prefix that all of the second half share."""
    bare = [tokenizer.encode(topic * (1 + index % 4)) for index, topic in enumerate(TOPICS)]
    prefixed = [tokenizer.encode(SHARED_PREFIX + topic) for topic in TOPICS]
    return bare + prefixed


@pytest.fixture(scope="module", params=[CpuBackend.TORCH, CpuBackend.COMPILED], ids=str)
def cpu_backend(request: pytest.FixtureRequest) -> CpuBackend:
    return request.param


@pytest.fixture(scope="module")
def chosen(cpu_backend: CpuBackend) -> slice:
    """Which prompts: all for the default, every fifth for torch, which takes minutes for all."""
    return slice(None) if cpu_backend is CpuBackend.COMPILED else slice(None, None, 5)


@pytest.fixture(scope="module")
def prompts(every_prompt: list[list[int]], chosen: slice) -> list[list[int]]:
    return every_prompt[chosen]


@pytest.fixture(scope="module")
def expected(every_answer: list[list[int]], chosen: slice) -> list[list[int]]:
    return every_answer[chosen]


@pytest.fixture(scope="module")
def new_runner(
    cpu_backend: CpuBackend, model_path: Path, tokenizer: Tokenizer
) -> Callable[[], ModelRunner]:
    return runners(cpu_backend, model_path, tokenizer)


def runners(
    cpu_backend: CpuBackend, model_path: Path, tokenizer: Tokenizer
) -> Callable[[], ModelRunner]:
    settings = Settings(
        cpu_backend=cpu_backend,
        block_size=BLOCK_SIZE,
        max_num_seqs=16,
        max_num_batched_tokens=LARGE_STEP_TOKENS,
        num_threads=1,
    )
    config = settings.engine_config()
    backend = choose_backend(config, open_model(model_path), tokenizer.eos_token_ids)
    assert str(cpu_backend) in backend.description
    poisoned = KvOptions(is_poisoned=True)
    return lambda: backend.load(NUM_BLOCKS, lambda ratio, detail: None, poisoned)


@pytest.fixture(scope="module")
def alone(new_runner: Callable[[], ModelRunner], tokenizer: Tokenizer) -> EngineHarness:
    return engine(new_runner(), tokenizer, SchedulerLimits(BLOCK_SIZE, 16, LARGE_STEP_TOKENS))


@pytest.fixture(scope="module")
def every_answer(
    reference: LlamaForCausalLM,
    tokenizer: Tokenizer,
    drafts: list[list[int]],
    every_prompt: list[list[int]],
) -> list[list[int]]:
    """What the reference makes of each prompt, one at a time."""
    with torch.inference_mode():
        eos = tokenizer.eos_token_ids
        pairs = zip(every_prompt, drafts, strict=True)
        return [greedy(reference, prompt, draft, eos) for prompt, draft in pairs]


def greedy(
    reference: LlamaForCausalLM, prompt: list[int], draft: list[int], eos_token_ids: Sequence[int]
) -> list[int]:
    """The reference's best tokens, whatever the draft; a right one takes a single pass."""
    while True:
        logits = reference(torch.tensor([prompt + draft])).logits[0]
        best = logits[len(prompt) - 1 :].argmax(-1).tolist()
        num_right = sum(accumulate(map(operator.eq, best, draft), operator.and_))
        is_whole = num_right == NUM_NEW_TOKENS or draft[-1] in eos_token_ids
        if is_whole and num_right == len(draft):
            return draft
        draft = best[: num_right + 1]


@pytest.fixture(scope="module")
def drafts(
    model_path: Path, tokenizer: Tokenizer, every_prompt: list[list[int]]
) -> list[list[int]]:
    runner = runners(CpuBackend.COMPILED, model_path, tokenizer)()
    drafting = engine(runner, tokenizer, SchedulerLimits(BLOCK_SIZE, 16, LARGE_STEP_TOKENS))
    return generated(drafting, drafting.submit_together(every_prompt, GREEDY))


GREEDY = SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=0.0)


def engine(
    runner: ModelRunner,
    tokenizer: Tokenizer,
    limits: SchedulerLimits,
    new_launcher: NewLauncher = InlineLauncher,
) -> EngineHarness:
    # The text is each token's number: comparing it compares tokens.
    names = [b"%d " % i for i in range(tokenizer.vocab_size)]
    return EngineHarness(
        runner, names, tokenizer.eos_token_ids, limits, NUM_BLOCKS, new_launcher=new_launcher
    )


def generated(engine: EngineHarness, sequence_ids: list[int]) -> list[list[int]]:
    engine.run()
    return [[int(t) for t in engine.outcomes[i].text.split()] for i in sequence_ids]


def test_each_prompt_alone(
    alone: EngineHarness, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """In one chunk each, without a prefix hit."""
    for index, prompt in enumerate(prompts):
        sequence_id = alone.submit(prompt, GREEDY, cache_salt=f"alone {index}")
        assert generated(alone, [sequence_id]) == [expected[index]]
        assert alone.outcomes[sequence_id].usage.cached_prompt_tokens == 0


def test_prefix_hits_change_nothing(
    alone: EngineHarness, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    def run() -> list[int]:
        ids = [alone.submit(p, GREEDY, cache_salt=f"hit {i}") for i, p in enumerate(prompts)]
        assert generated(alone, ids) == expected
        return ids

    run()
    hits = [alone.outcomes[i].usage.cached_prompt_tokens for i in run()]
    num_full_blocks = sum((len(prompt) - 1) // BLOCK_SIZE for prompt in prompts)
    assert sum(hits) == num_full_blocks * BLOCK_SIZE > 100


@pytest.mark.parametrize(
    "max_num_batched_tokens", [24, LARGE_STEP_TOKENS], ids=["small chunks", "large chunks"]
)
def test_company_and_chunking_change_nothing(
    new_runner: Callable[[], ModelRunner],
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    expected: list[list[int]],
    max_num_batched_tokens: int,
) -> None:
    limits = SchedulerLimits(BLOCK_SIZE, 16, max_num_batched_tokens)
    together = engine(new_runner(), tokenizer, limits)
    assert generated(together, together.submit_together(prompts, GREEDY)) == expected


def test_launching_ahead_changes_nothing(
    new_runner: Callable[[], ModelRunner],
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    expected: list[list[int]],
) -> None:
    """In chunks and with a shared prefix, the steps computed by a thread of their own."""
    limits = SchedulerLimits(BLOCK_SIZE, 4, 24)
    ahead = engine(new_runner(), tokenizer, limits, ThreadLauncher)
    ids = ahead.submit_together(prompts[-6:], GREEDY)
    assert generated(ahead, ids) == expected[-6:]


def test_logits_equal_those_of_the_reference(
    model: LlamaModel, reference: LlamaForCausalLM, every_prompt: list[list[int]]
) -> None:
    """The whole distribution, at the end of a prompt computed in one chunk."""
    from replica.engine.batch import FlatBatch, Segment
    from replica.engine.paged_attention import KvCache, PagedAttention

    prompt = every_prompt[-1]
    num_blocks = -(-len(prompt) // BLOCK_SIZE)
    table = tuple(range(1, num_blocks + 1))
    positions = range(len(prompt))
    slots = [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in positions]
    batch = FlatBatch(prompt, positions, slots, [Segment(0, len(prompt), 0, table)], [])
    cache = KvCache(model.config, num_blocks + 1, BLOCK_SIZE)
    with torch.inference_mode():
        hidden = model.hidden_states(
            torch.tensor(prompt), torch.tensor(positions), PagedAttention(cache, batch, BLOCK_SIZE)
        )
        ours = model.logits(hidden)
        theirs = reference(torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-4)
