"""The state of rows in buffers that never move, for cycles of fixed shapes.

Fixed shapes need spare room: the target's cache of S slots holds [text | one spare slot | tree], the drafters' [text |
levels]; slots between a row's text and the end are never read.
Axes: B rows, N drafters, H hidden, W draft vocabulary.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from drafterforge.drafters.eagle3.propose import new_draft_cache
from drafterforge.drafters.eagle3.stack import StackReader
from drafterforge.drafters.eagle3.stacked import StackedDrafters
from drafterforge.kernels import gpu
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.runtime.sampling import NUMBERS
from drafterforge.targets.load import Target
from drafterforge.tree.tries import num_packed

if TYPE_CHECKING:
    from drafterforge.runtime.static_batch import StaticBatch
    from drafterforge.runtime.static_cycle import StaticCycle

ROW_PLAN = 4  # numbers that the host writes for each row before a cycle: drafter, levels, nodes, width


class StaticRows:
    """State of B rows and of N drafters, which all read the rows' texts."""

    def __init__(
        self,
        target: Target,
        drafters: StackedDrafters | None,
        batch: int,
        slots: int,
        max_depth: int,
        trie_nodes: int = 0,
    ) -> None:
        """trie_nodes: of what retrieval proposes in each row; 0: no drafter retrieves."""
        device = target.device
        self.target, self.drafters, self.batch, self.slots = target, drafters, batch, slots

        def zeros(*shape: int, kind: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(*shape, dtype=kind, device=device)

        self.cache = target.new_cache(batch)
        self.cache.reserve(slots)
        self.lengths, self.root = zeros(batch), zeros(batch)
        self.uniform = zeros(batch, max_depth + 1, kind=torch.float64)
        self.sampling = zeros(batch, len(NUMBERS), kind=torch.float64)
        self.seen = zeros(batch, target.head_weight.shape[0], kind=torch.bool)  # tokens with a repetition penalty
        self.row_plans = zeros(batch, ROW_PLAN)
        self.tries = zeros(batch, num_packed(trie_nodes), kind=torch.float64) if trie_nodes else None
        self.logits: Tensor | None = None
        if drafters is not None:
            count, embedding = len(drafters.members), drafters.embedding
            self.draft_cache = new_draft_cache(drafters.members[0], count * batch)  # rows drafter by drafter
            self.draft_cache.reserve(slots)
            self.stable = zeros(batch)
            self.last = zeros(count, batch, embedding.shape[1], kind=embedding.dtype)  # newest outputs
            self.logits = zeros(count, batch, drafters.token_ids.shape[1], kind=embedding.dtype)  # of `last`
        self.cycles: dict[tuple, StaticCycle] = {}
        self.graph_memory: gpu.Graph | None = None  # the first graph, whose memory the graphs of all cycles share
        self.owner: weakref.ref[StaticBatch] | None = None  # the batch that decodes in these buffers

    @property
    def free(self) -> bool:
        """Whether no living batch uses these buffers."""
        return self.owner is None or self.owner() is None

    def state(self) -> list[Tensor]:
        """Tensors that a cycle changes and the next one reads, without keys beyond the text, which are overwritten."""
        state = [self.lengths, self.root, self.seen]
        return state if self.drafters is None else [*state, self.stable, self.last, self.logits]

    def copy_row(self, row: int, source: StaticRows, source_row: int) -> None:
        """Overwrite a row with one of other buffers."""
        self.lengths[row], self.root[row] = source.lengths[source_row], source.root[source_row]
        self.seen[row] = source.seen[source_row]
        copy_keys(self.cache, row, source.cache.data[:, :, source_row])
        if self.drafters is not None:
            self.stable[row] = source.stable[source_row]
            self.last[:, row], self.logits[:, row] = source.last[:, source_row], source.logits[:, source_row]
            for member in range(len(self.drafters.members)):
                keys = source.draft_cache.data[:, :, member * source.batch + source_row]
                copy_keys(self.draft_cache, member * self.batch + row, keys)

    def set_prompt(self, cache: KeyValueCache, text: Tensor, seen: Tensor | None, reader: StackReader | None) -> None:
        """Fill the only row with a prompt that has been read.

        cache: of the target.  text: [P + 1], root included.  seen: tokens with a repetition penalty, [1, V].  reader:
        of the drafters.
        """
        copy_keys(self.cache, 0, cache.data[:, :, 0])
        self.lengths.fill_(text.numel() - 1)
        self.root.copy_(text[-1:])
        if seen is not None:
            self.seen.copy_(seen)
        if reader is not None:
            row = reader.row
            for member in range(len(self.drafters.members)):
                copy_keys(self.draft_cache, member, row.cache.data[:, :, member])
            self.stable.fill_(row.stable[0])
            self.last.copy_(row.last)
            self.logits.copy_(row.logits)


def copy_keys(cache: KeyValueCache, row: int, keys: Tensor) -> None:
    """Overwrite a row's keys and values with `keys`, [L, 2, H, S, D], as many slots as both have."""
    slots = min(keys.shape[3], cache.data.shape[4])
    cache.data[:, :, row, :, :slots] = keys[:, :, :, :slots]
