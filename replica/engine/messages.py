"""What crosses the socket between the HTTP process and the engine process.

Both ends are the same version of this file (one spawns the other), so the structs are arrays:
half the bytes of maps, and nothing outside ever reads them.
"""

import enum
from typing import Final

import msgspec

from contracts.replica_api import FINISH_REASON_DEADLINE

MAX_TOP_LOGPROBS: Final = 20  # as OpenAI for chats, and vLLM for both


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    DEADLINE = FINISH_REASON_DEADLINE


class Device(enum.StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


class CpuBackend(enum.StrEnum):
    """What computes the steps on a CPU."""

    AUTO = "auto"  # compiled, where model and machine allow it, and torch elsewhere
    COMPILED = "compiled"
    TORCH = "torch"


class Preemption(enum.StrEnum):
    """What becomes of what a preempted sequence had computed."""

    RECOMPUTE = "recompute"
    SWAP = "swap"  # it is kept in host memory, while there is room


class Precision(enum.StrEnum):
    """What weights and activations are multiplied as.  All but the first round something."""

    EXACT = "exact"  # weights as shipped, float32 activations
    FAST = "fast"  # int8 activations with a scale per 32; weights as shipped, or int8 if floats
    INT8 = "int8"  # both int8 with a scale per 32, whatever was shipped
    INT8_PER_CHANNEL = "int8-per-channel"  # the same, weights with a scale per output
    BFLOAT16 = "bfloat16"  # weights rounded to bfloat16, float32 activations
    FLOAT8 = "float8"  # on a GPU: both e4m3, where that was measured faster


class KvCacheDtype(enum.StrEnum):
    """What keys and values are kept as."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"  # a scale per token and head
    FLOAT8 = "float8"  # on a GPU: e4m3

    def bytes_per_head(self, head_dim: int) -> int:
        """Of one token's keys, or values."""
        match self:
            case KvCacheDtype.FLOAT32:
                return 4 * head_dim
            case KvCacheDtype.BFLOAT16:
                return 2 * head_dim
            case KvCacheDtype.INT8:
                return head_dim + 4
            case KvCacheDtype.FLOAT8:
                return head_dim


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    max_tokens: int
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    seed: int = 0  # always set: a request without one gets a random one before it comes here
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0  # until then neither EOS nor a stop string ends the sequence
    num_top_logprobs: int | None = None  # beside each token's own; None: not even that one
    logit_bias: dict[int, float] = {}  # by token id, added before anything is drawn
    presence_penalty: float = 0.0  # of each token that the completion holds
    frequency_penalty: float = 0.0  # as often as the completion holds it
    repetition_penalty: float = 1.0  # of each token of prompt and completion

    @property
    def has_penalties(self) -> bool:
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)


class Usage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Tokens processed.  The engine counts them, once; everyone else repeats this."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0  # subset of prompt_tokens
    completion_tokens: int = 0


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="configure"):
    """The first message to a new engine process.  None: as the model or the machine says."""

    model: str
    model_cache_dir: str
    device: Device
    num_threads: int | None
    cpu_backend: CpuBackend
    precision: Precision
    kv_cache_dtype: KvCacheDtype
    compile_cache_dir: str
    max_model_len: int | None
    memory_bytes: int | None
    kv_cache_bytes: int
    preemption: Preemption
    swap_bytes: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    is_prefix_caching: bool
    is_kv_poisoned: bool
    is_async_scheduling: bool
    priority_aging_s: float
    fair_share_slack_tokens: int
    prefix_window_s: float
    log_level: str
    adapters: tuple[tuple[str, str], ...] = ()  # names, folders; a request says a place here

    @property
    def kv_name(self) -> str:
        """What keys and values are on a CPU, and what they are computed with if not exactly."""
        if self.precision is Precision.EXACT:
            return self.kv_cache_dtype
        return f"{self.kv_cache_dtype}-{self.precision}"


class Submit(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="submit"):
    """A request: one sequence per choice, in order."""

    sequence_id: int  # the first one's; those of the others follow
    prompt_token_ids: list[int]
    params: SamplingParams  # the seed is the first one's
    cache_salt: str  # the tenant: prefixes are shared and service is fair within it
    priority: int = 0  # the least goes first
    time_left_s: float | None = None  # until its deadline
    num_resumed_tokens: int = 0  # the last of the prompt's: generated elsewhere already
    num_choices: int = 1
    adapter: int | None = None  # of the configured ones


class Abort(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="abort"):
    """Answered by the sequence's finished delta, unless it has been sent already."""

    sequence_id: int


class ClearCache(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="clear_cache"):
    """No prefix that is cached now is found again."""


class Loading(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="loading"):
    phase: str  # contracts.replica_api.Phase
    progress_ratio: float
    detail: str


class Located(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="located"):
    """The model's files are on disk: the HTTP process loads its own tokenizer from them."""

    path: str


class Ready(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="ready"):
    max_model_len: int
    num_blocks: int
    block_size: int
    detail: str  # one line for people: what computes the steps, and why


class LoadFailed(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="load_failed"):
    detail: str


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Natural logarithms of probabilities, of one place in a completion."""

    logprob: float  # of the token that was chosen
    top_token_ids: list[int] = []  # likeliest first
    top_logprobs: list[float] = []  # of each of them


class Delta(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What one step added to one sequence."""

    sequence_id: int
    text: str = ""
    num_tokens: int = 0
    token_id: int | None = None  # of the only one, if there is one
    logprobs: TokenLogprobs | None = None  # of that one, if they are wanted
    finish_reason: FinishReason | None = None
    usage: Usage | None = None  # set exactly when finish_reason is
    queue_s: float | None = None  # set on the first delta of a sequence that was scheduled
    cached_prompt_tokens: int | None = None  # set with it


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Gauges, and counters since the process began."""

    num_running: int = 0
    num_waiting: int = 0
    num_used_blocks: int = 0
    num_usable_blocks: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0  # those of them that kept what was computed
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    queued_prompt_tokens: int = 0
    expected_output_tokens: int = 0
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    num_audits: int = 0  # of the blocks, when idle
    num_audit_faults: int = 0


class BlockStored(msgspec.Struct, frozen=True, array_like=True, tag="stored"):
    digest: bytes
    parent_digest: bytes
    num_tokens: int


class BlockRemoved(msgspec.Struct, frozen=True, array_like=True, tag="removed"):
    digest: bytes


class BlocksCleared(msgspec.Struct, frozen=True, array_like=True, tag="cleared"):
    pass


BlockChange = BlockStored | BlockRemoved | BlocksCleared


class Preempted(msgspec.Struct, frozen=True, array_like=True):
    """A running sequence's blocks were taken away."""

    sequence_id: int
    kind: Preemption
    num_blocks: int


class PromptComputed(msgspec.Struct, frozen=True, array_like=True):
    """A sequence has its first token; its prompt holds at least one whole block."""

    sequence_id: int
    digest: bytes  # of the last whole one
    num_tokens: int
    block_size: int


class StepReport(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="step"):
    """Sent after every step and every abort.  ``stats`` already count what ``deltas`` report."""

    deltas: list[Delta]
    stats: EngineStats
    num_batched_tokens: int
    block_changes: list[BlockChange]  # of the prefix cache, in order
    preempted: list[Preempted]  # before anything in ``deltas``
    prompts: list[PromptComputed] = []  # their blocks are among the changes, or were before


ToEngine = EngineConfig | Submit | Abort | ClearCache
FromEngine = Loading | Located | Ready | LoadFailed | StepReport

LENGTH_PREFIX_BYTES: Final = 4
_encoder = msgspec.msgpack.Encoder()
_to_engine_decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine_decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode_frame(message: ToEngine | FromEngine) -> bytes:
    """Big-endian length, then msgpack."""
    payload = _encoder.encode(message)
    return len(payload).to_bytes(LENGTH_PREFIX_BYTES, "big") + payload


def decode_to_engine(payload: bytes | bytearray | memoryview) -> ToEngine:
    return _to_engine_decoder.decode(payload)


def decode_from_engine(payload: bytes | bytearray | memoryview) -> FromEngine:
    return _from_engine_decoder.decode(payload)
