"""How many GPUs make a replica, and how many requests fit into it."""

from dataclasses import dataclass

from pandal.errors import BadOption
from pandal.planner import memory
from pandal.planner.figure import Figure
from pandal.planner.model_shape import ModelShape
from pandal.planner.question import Load, Serving

TENSOR_PARALLEL_DEGREES = (1, 2, 4, 8)  # within one machine
MIN_SEQUENCES = 16  # with fewer beside each other, decoding leaves most of a GPU idle


@dataclass(frozen=True, slots=True)
class Room:
    num_gpus: int
    kv_copies: Figure
    kv_request: Figure
    kv_space: Figure
    max_sequences: Figure

    @property
    def figures(self) -> tuple[Figure, ...]:
        return (self.kv_copies, self.kv_request, self.kv_space, self.max_sequences)


def find_room(serving: Serving, load: Load) -> Room:
    """On the GPUs asked for, or on the fewest that do.  Raises BadOption."""
    if serving.num_gpus is not None:
        _check_heads(serving.shape, serving.num_gpus)
        return _checked(_room_on(serving, load, serving.num_gpus), serving, "--tp")
    degrees = [d for d in TENSOR_PARALLEL_DEGREES if _divides_heads(serving.shape, d)]
    rooms = [_room_on(serving, load, degree) for degree in degrees]
    for room in rooms:
        if room.max_sequences.value >= min(MIN_SEQUENCES, serving.max_batch):
            return room
    return _checked(rooms[-1], serving, "--gpu")


def weights(serving: Serving) -> Figure:
    return memory.weight_bytes(serving.shape.num_parameters, serving.weight_precision)


def kv_bytes_of_token(serving: Serving) -> float:
    """One copy."""
    return serving.shape.kv_bytes_per_token(serving.kv_precision)


def kv_copies(serving: Serving, num_gpus: int) -> Figure:
    return memory.kv_copies(num_gpus, serving.shape.num_kv_heads)


def _room_on(serving: Serving, load: Load, num_gpus: int) -> Room:
    tokens = load.prompt_tokens + load.output_tokens
    copies = kv_copies(serving, num_gpus)
    per_request = memory.kv_bytes(tokens, kv_bytes_of_token(serving), copies=copies.value)
    space = memory.kv_space_bytes(
        serving.gpu,
        num_gpus=num_gpus,
        usable_ratio=serving.usable_ratio,
        weight_bytes=weights(serving).value,
    )
    fitting = memory.max_sequences(space.value, per_request.value)
    return Room(num_gpus, copies, per_request, space, fitting)


def _divides_heads(shape: ModelShape, num_gpus: int) -> bool:
    """Each GPU takes as many query heads as the others, and whole KV heads for them."""
    num_heads, num_kv_heads = shape.config.num_attention_heads, shape.num_kv_heads
    is_kv_even = num_kv_heads % num_gpus == 0 or num_gpus % num_kv_heads == 0
    return num_heads % num_gpus == 0 and is_kv_even


def _check_heads(shape: ModelShape, num_gpus: int) -> None:
    if not _divides_heads(shape, num_gpus):
        raise BadOption(
            f"--tp: the {shape.config.num_attention_heads} attention heads and "
            f"{shape.num_kv_heads} KV heads of {shape.name} do not share out over {num_gpus} GPUs"
        )


def _checked(room: Room, serving: Serving, option: str) -> Room:
    if room.max_sequences.value < 1:
        raise BadOption(
            f"{option}: {room.num_gpus} x {serving.gpu.name} cannot hold {serving.shape.name} in "
            f"{serving.weight_precision} and one such request beside it"
        )
    return room
