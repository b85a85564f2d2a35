"""What becomes of what a preempted sequence had computed: kept in host memory or computed anew."""

from replica.engine.block_manager import BlockManager, blocks_for
from replica.engine.messages import Preempted, Preemption
from replica.engine.sequence import SavedKv, Sequence, block_table


class GivingWay:
    def __init__(self, blocks: BlockManager, block_size: int) -> None:
        self._blocks = blocks
        self._block_size = block_size
        self._latest: list[Preempted] = []
        self.num_preemptions = 0  # since the beginning
        self.num_swaps = 0  # those of them that kept what was computed

    def save(self, sequence: Sequence) -> None:
        """Before its blocks are taken.

        All but its last known token: what a step in flight decides is decided again.
        """
        num_tokens = min(sequence.num_computed_tokens, len(sequence.token_ids) - 1)
        num_blocks = blocks_for(num_tokens, self._block_size)
        copies = self._blocks.host.save(sequence.block_table[:num_blocks])
        sequence.saved = SavedKv(copies, num_tokens) if copies else None
        kind = Preemption.RECOMPUTE if sequence.saved is None else Preemption.SWAP
        self._latest.append(Preempted(sequence.sequence_id, kind, len(sequence.block_table)))
        self.num_preemptions += 1
        self.num_swaps += kind is Preemption.SWAP

    def restore(self, sequence: Sequence) -> None:
        """What is not in its table again already; blocks for it are free."""
        saved = sequence.saved
        if saved is None:
            return
        num_cached = len(sequence.block_table)
        wanted = saved.copies[num_cached:]
        if wanted:
            blocks = [self._blocks.allocate() for _ in wanted]
            self._blocks.host.restore(wanted, blocks)
            sequence.block_table = sequence.block_table + block_table(blocks)
            sequence.num_computed_tokens = saved.num_tokens
        self.discard(sequence)

    def discard(self, sequence: Sequence) -> None:
        if sequence.saved is not None:
            self._blocks.host.discard(sequence.saved.copies)
            sequence.saved = None

    def take_latest(self) -> list[Preempted]:
        """Since it was last called."""
        latest, self._latest = self._latest, []
        return latest
