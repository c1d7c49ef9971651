"""Drafting with a small independent language model: it reads tokens only and has its own key-value cache.

Axes: B rows, A committed tokens, K beam nodes, L level slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drafterforge.drafters.causal_lm.small import SmallLM
from drafterforge.drafters.judging import Judgement, Truth, draft_id_table, judge
from drafterforge.drafters.proposer import JudgedProposer, PromptReader, Request
from drafterforge.kernels.attention import additive
from drafterforge.tree.branch import expand_with_proposals
from drafterforge.tree.expand import expand
from drafterforge.tree.grow import Tree, TreeShape, root_only
from drafterforge.tree.masks import level_mask


class CausalLMReader(PromptReader):
    """Reads a prompt into a separate row, which then joins the other rows."""

    def __init__(self, drafter: SmallLM) -> None:
        self.row = CausalLMProposer(drafter)
        self.row.cache, self.row.stable = self.row.model.new_cache(1), [0]

    def read(self, text: Tensor, features: Tensor) -> None:
        unread = text[self.row.stable[0] :]
        self.row.read(unread[None], features, [len(unread)])


class CausalLMProposer(JudgedProposer):
    """A causal LM with the target's tokenizer; the cache holds [text | this cycle's levels]."""

    reads_features = False

    def __init__(self, drafter: SmallLM) -> None:
        self.drafter, self.model = drafter, drafter.model
        model = drafter.model
        self.cache = model.new_cache(0)
        self.stable: list[int] = []
        self.logits = torch.empty(
            0, model.config.vocab_size, dtype=model.compute_dtype, device=model.device
        )  # after the roots

    def admit(self, text: Tensor, features: Tensor) -> None:
        reader = self.prompt_reader()
        reader.read(text, features)
        self.join_row(reader, text, features)

    def prompt_reader(self, request: Request | None = None) -> CausalLMReader:
        return CausalLMReader(self.drafter)

    def join_row(self, reader: CausalLMReader, text: Tensor, features: Tensor) -> None:
        row = reader.row
        if self.stable:
            self.cache.put_rows(row.cache, [])
        else:
            self.cache = row.cache
        self.logits = torch.cat((self.logits, row.logits))
        self.stable += row.stable

    def keep(self, rows: list[int]) -> None:
        index = torch.tensor(rows, dtype=torch.long, device=self.model.device)
        self.cache.keep_rows(rows)
        self.stable = [self.stable[row] for row in rows]
        self.logits = self.logits[index]

    def read(self, tokens: Tensor, features: Tensor, counts: Sequence[int]) -> None:
        self._set_logits(self._states(tokens, counts), counts)

    def read_with_guesses(self, tokens: Tensor, features: Tensor, counts: Sequence[int]) -> Tensor:
        """As `read`; returns the logits that predicted the committed tokens, [B, A, V]."""
        before = self.logits[:, None]
        states = self._states(tokens, counts)
        self._set_logits(states, counts)
        return torch.cat((before, self.model.logits(states[:, :-1])), dim=1)

    def judge(self, guesses: list[list[Tensor]], truth: Truth, top_k: Sequence[int]) -> Judgement:
        """See `JudgedProposer`; a guess is logits [V]."""
        logits = pad_sequence([torch.stack(row) for row in guesses], batch_first=True)[None]
        return judge(logits, *self._vocabulary, truth, top_k)

    @cached_property
    def _vocabulary(self) -> tuple[Tensor, Tensor]:
        """Token and draft ids, [1, V]: the model can propose every token."""
        token_ids = torch.arange(self.model.config.vocab_size, device=self.model.device)[None]
        return token_ids, draft_id_table(token_ids, token_ids.shape[1])

    def _set_logits(self, states: Tensor, counts: Sequence[int]) -> None:
        last = torch.tensor(counts, device=states.device) - 1
        self.logits = self.model.logits(states[torch.arange(len(counts), device=states.device), last])

    def _states(self, tokens: Tensor, counts: Sequence[int]) -> Tensor:
        """The model's states at the tokens, [B, A, width]; the cache keeps counts[b] of them."""
        batch, width = tokens.shape
        device = tokens.device
        steps = torch.arange(width, device=device)
        lengths = torch.tensor(self.stable, device=device)[:, None]
        slots = lengths + steps
        used = max(self.stable) + width
        self.stable = [stable + count for stable, count in zip(self.stable, counts, strict=True)]
        if batch == 1:
            self.cache.set_slots(used - width, width)
        else:
            self.cache.set_ragged_slots(slots, used)
        mask = additive(torch.arange(used, device=device) <= slots[:, :, None], self.model.compute_dtype)
        return self.model.forward(tokens, slots, self.cache, mask)[0]

    def draft_trees(self, root: Tensor, shape: TreeShape) -> Tree:
        """Trees below the roots [B], which the model has read."""
        return self.draft_rows(range(len(self.stable)), root, shape)

    def draft_rows(self, rows: Sequence[int], root: Tensor, shape: TreeShape) -> Tree:
        """As `draft_trees`, for some rows, whose roots are [B']."""
        return self._draft(rows, root, shape, expand)

    def draft_with_proposals(self, rows: Sequence[int], root: Tensor, shape: TreeShape) -> Tree:
        """See `JudgedProposer`."""
        return self._draft(rows, root, shape, expand_with_proposals)

    def _draft(self, rows: Sequence[int], root: Tensor, shape: TreeShape, grow: Callable[..., Tree]) -> Tree:
        if len(rows) < len(self.stable):
            subset = CausalLMProposer(self.drafter)
            index = torch.tensor(list(rows), dtype=torch.long, device=root.device)
            subset.cache, subset.logits = self.cache.copy_rows(index), self.logits[index]
            subset.stable = [self.stable[row] for row in rows]
            return subset._draft(range(len(rows)), root, shape, grow)
        base = max(self.stable)
        # rows beyond the model's context get bad drafts; if all rows are beyond it, nothing is drafted
        depth = min(shape.depth, self.model.max_positions - min(self.stable))
        if depth < 1:
            return root_only(root)
        lengths = torch.tensor(self.stable, device=root.device)[:, None]

        def step(level: int, tokens: Tensor, origin: Tensor, reads: Tensor) -> Tensor:
            count = tokens.shape[1]
            self.cache.set_slots(base + reads.shape[2] - count, count)
            mask = level_mask(reads, lengths[:, 0], base, self.model.compute_dtype)
            positions = (lengths + level - 1).expand(-1, count)
            states, _ = self.model.forward(tokens, positions, self.cache, mask)
            return self.model.logits(states)

        return grow(root, self.logits, TreeShape(shape.num_tokens, depth, shape.top_k), step)
