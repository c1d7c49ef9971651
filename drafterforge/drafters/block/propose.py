"""Reading and drafting with block drafters: a generalist and its LoRA experts, or one drafter.

The cache holds [positions of the text | tokens of this pass's blocks]; blocks begin after the longest row: a row never
reads slots between its own text and the blocks.
Axes: N drafters, B rows, A committed tokens, Q tokens of a block, I = Q - 1 drafted positions, H hidden, W draft
vocabulary, W' with confidence, see `fused`, T taps of the target; cache rows are ordered row by row, the drafters of a
row side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drafterforge.drafters.block.fused import BlockPass, FusedBlock, StackedBlocks
from drafterforge.drafters.group import DrafterGroup, GroupProposer, TextReading
from drafterforge.drafters.judging import Judgement, Truth, judge
from drafterforge.drafters.proposer import JudgedPrompt, PromptReader
from drafterforge.kernels.attention import additive
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.masks import Mask
from drafterforge.tree.branch import expand_with_proposals
from drafterforge.tree.expand import Growth, Step, expand
from drafterforge.tree.grow import Tree, TreeShape
from drafterforge.tree.masks import level_mask
from drafterforge.tree.merge import RetrievalEvidence

ROOTS = 32  # of a row, whose blocks are drafted together to judge a text


def read_blocks(drafter: BlockPass, cache: KeyValueCache, tokens: Tensor, positions: Tensor, mask: Mask) -> Tensor:
    """Outputs [..., B, K, H] of block tokens [B, K] at positions [B, K].

    cache: of all drafters, set to the slots that the tokens are written to.
    """
    rows, kernels = tokens.shape, drafter.kernels

    def by_row(x: Tensor) -> Tensor:
        x = x.unflatten(-3, rows)
        return x.transpose(0, 1).flatten(0, 1) if x.dim() == 5 else x

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = cache.write(layer, by_row(k), by_row(v))
        mixed = kernels.grouped_attention(by_row(q), keys, values, mask)
        if q.dim() == 4:
            mixed = mixed.unflatten(0, (rows[0], -1)).transpose(0, 1)
        return mixed.flatten(-4, -3)

    return drafter.outputs(tokens.flatten(), positions.flatten(), attend).unflatten(-2, rows)


class BlockReader(PromptReader):
    """Reads a prompt into a separate row, which then joins the other rows."""

    def __init__(self, drafters: StackedBlocks) -> None:
        self.row = BlockGroup(drafters)
        self.row.open_row()

    def read(self, text: Tensor, features: Tensor) -> None:
        self.row.unread = [[(text[-len(features) :], features)]]
        self.row.read()


class BlockGroup(DrafterGroup):
    """State of N drafters for every row."""

    def __init__(self, drafters: StackedBlocks) -> None:
        spec, embedding = drafters.spec, drafters.embedding
        self.drafters = drafters
        self.cache = KeyValueCache(
            spec.num_layers, 0, spec.num_key_heads, spec.head_dim, embedding.dtype, embedding.device
        )
        self.stable: list[int] = []  # positions that each row's drafters have read
        self.roots = torch.zeros(0, dtype=torch.long, device=embedding.device)  # newest tokens, [B]
        self.unread: list[list[tuple[Tensor, Tensor]]] = []  # of each row: tokens [A] and features [A, TH]
        self.drafted: dict[int, tuple[list[int], Tensor]] = {}  # rows and logits [B', I, W'] of a drafter's blocks

    def open_row(self) -> None:
        """Add a row without text."""
        cache = self.cache
        added = KeyValueCache(
            len(cache.data), len(self.drafters.members), *cache.data.shape[3:6:2], cache.data.dtype, cache.data.device
        )
        cache.put_rows(added, [])
        self.stable, self.unread, self.drafted = [*self.stable, 0], [*self.unread, []], {}
        self.roots = torch.cat((self.roots, self.roots.new_zeros(1)))

    def admit(self, text: Tensor, features: Tensor) -> None:
        reader = self.prompt_reader()
        reader.read(text, features)
        self.join_row(reader, text, features)

    def prompt_reader(self, judged: JudgedPrompt | None = None) -> BlockReader:
        return BlockReader(self.drafters)

    def join_row(self, reader: BlockReader, text: Tensor, features: Tensor) -> None:
        self.read()
        self.cache.put_rows(reader.row.cache, [])
        self.stable, self.unread, self.drafted = self.stable + reader.row.stable, [*self.unread, []], {}
        self.roots = torch.cat((self.roots, text[-1:]))

    def keep(self, rows: list[int]) -> None:
        self.cache.keep_rows([row * self.count + member for row in rows for member in range(self.count)])
        self.stable, self.unread = [self.stable[row] for row in rows], [self.unread[row] for row in rows]
        self.roots, self.drafted = self.roots[torch.tensor(rows, dtype=torch.long, device=self.roots.device)], {}

    def remove(self, member: int) -> None:
        members = [index for index in range(self.count) if index != member]
        rows = [row * self.count + index for row in range(len(self.stable)) for index in members]
        self.cache.keep_rows(rows)
        self.drafters, self.drafted = StackedBlocks([self.drafters.members[index] for index in members]), {}

    @property
    def count(self) -> int:
        """Number of drafters."""
        return len(self.drafters.members)

    def commit(self, tokens: Tensor, features: Tensor, counts: list[int]) -> None:
        for row, count in enumerate(counts):
            self.unread[row].append((tokens[row, :count], features[row, :count]))

    def read(self, truth: Truth | None = None, top_k: Sequence[int] = ()) -> Judgement | None:
        """See `DrafterGroup`; a drafter is judged on the first position of its block below each token before."""
        if not any(self.unread):
            return None
        tokens = pad_sequence([torch.cat([tokens for tokens, _ in row]) for row in self.unread], batch_first=True)
        features = pad_sequence([torch.cat([part for _, part in row]) for row in self.unread], batch_first=True)
        counts = [sum(len(tokens) for tokens, _ in row) for row in self.unread]
        starts, added = (torch.tensor(part, device=tokens.device) for part in (self.stable, counts))
        self._append(features, starts, max(self.stable) + tokens.shape[1])
        judgement = None
        if truth is not None:
            before = torch.cat((self.roots[:, None], tokens[:, :-1]), dim=1)
            positions, base = starts[:, None] + torch.arange(tokens.shape[1], device=tokens.device), self.cache.used
            parts = zip(before.split(ROOTS, dim=1), positions.split(ROOTS, dim=1), strict=True)
            logits = torch.cat([self._first_guesses(*part, base) for part in parts], dim=2)
            judgement = judge(logits, self.drafters.token_ids, self.drafters.draft_ids, truth, top_k)
        self.roots = tokens.gather(1, added[:, None] - 1)[:, 0]
        self.stable = [stable + count for stable, count in zip(self.stable, counts, strict=True)]
        self.unread, self.drafted = [[] for _ in self.stable], {}
        return judgement

    def _append(self, features: Tensor, starts: Tensor, used: int) -> None:
        """Write keys and values of features [B, A, TH], at positions from starts [B] on."""
        batch, width = features.shape[:2]
        slots = starts[:, None] + torch.arange(width, device=starts.device)
        self.cache.set_ragged_slots(slots.repeat_interleave(self.count, dim=0), used)
        for layer, pair in enumerate(self.drafters.context(features.flatten(0, 1), slots.flatten())):
            keys, values = (part.unflatten(1, (batch, width)).transpose(0, 1).flatten(0, 1) for part in pair)
            self.cache.write(layer, keys, values)

    def _first_guesses(self, roots: Tensor, positions: Tensor, base: int) -> Tensor:
        """Logits of all drafters for the tokens after roots [B, A] at positions [B, A], [N, B, A, W].

        base: slot of the cache where the blocks are written.
        """
        drafters, (batch, width), size = self.drafters, roots.shape, self.drafters.spec.block_size
        blocks = positions[:, :, None] + torch.arange(size, device=roots.device)
        self.cache.set_slots(base, width * size)
        text = torch.arange(base, device=roots.device) < positions[:, :, None]  # [B, A, S]
        itself = torch.eye(width, dtype=torch.bool, device=roots.device).repeat_interleave(size, 1)
        reads = torch.cat((text, itself.expand(batch, -1, -1)), dim=2).repeat_interleave(size, 1)
        mask = additive(reads.repeat_interleave(self.count, dim=0), drafters.embedding.dtype)
        outputs = read_blocks(drafters, self.cache, drafters.blocks(roots).flatten(1), blocks.flatten(1), mask)
        first = outputs.unflatten(2, (width, size))[:, :, :, 1]
        return drafters.after(drafters.logits(first.flatten(1, 2)).unflatten(1, (batch, width)), roots)

    def guesses(self, member: int, rows: list[int]) -> Tensor:
        index = torch.tensor(rows, device=self.roots.device)
        logits = self._draft(member, rows)
        return self.drafters.members[member].after(logits[:, 0], self.roots[index])

    def draft(
        self,
        member: int,
        rows: list[int],
        root: Tensor,
        shape: TreeShape,
        growth: Growth | None = None,
        retrieval: RetrievalEvidence | None = None,
        proposals: bool = False,
    ) -> Tree:
        drafter, logits = self.drafters.members[member], self._draft(member, rows)
        first = drafter.after(logits[:, 0], root)
        grow = expand_with_proposals if proposals else expand
        return grow(root, first, shape, block_step(drafter, logits), drafter.vocabulary, growth, retrieval)

    def _draft(self, member: int, rows: list[int]) -> Tensor:
        """Logits of one drafter's blocks below the roots of some rows, [B', I, W']; one pass a cycle computes them."""
        self.read()
        drafted, logits = self.drafted.get(member, ([], None))
        if rows == drafted:
            return logits
        if not set(rows) <= set(drafted):
            index = None if len(rows) == len(self.stable) else torch.tensor(rows, device=self.roots.device)
            stable = torch.tensor([self.stable[row] for row in rows], device=self.roots.device)
            roots, base = self.roots if index is None else self.roots[index], max(self.stable[row] for row in rows)
            self.cache.reserve(base + self.drafters.spec.block_size)
            logits = draft_block(self.drafters.members[member], self._member_cache(member, index), roots, stable, base)
            self.drafted[member] = list(rows), logits
            return logits
        return logits[torch.tensor([drafted.index(row) for row in rows], device=logits.device)]

    def _member_cache(self, member: int, rows: Tensor | None) -> KeyValueCache:
        """One drafter's part of the cache, valid until more memory is reserved; a copy if only some rows are asked."""
        part = self.cache.rows(0, 0)
        part.replace(self.cache.data[:, :, member :: self.count])
        return part if rows is None else part.copy_rows(rows)

    def read_text(self, tokens: Tensor, features: Tensor, top_k: Sequence[int]) -> BlockReading:
        return BlockReading(self, tokens, features, top_k)


def draft_block(drafter: FusedBlock, cache: KeyValueCache, roots: Tensor, stable: Tensor, base: int) -> Tensor:
    """Logits [B, I, W'] of the blocks below roots [B] with `stable` [B] positions before them, without Markov head.

    base: slot of the cache where the blocks are written.
    """
    size = drafter.spec.block_size
    positions = stable[:, None] + torch.arange(size, device=roots.device)
    cache.set_slots(base, size)
    reads = torch.ones(len(roots), size, size, dtype=torch.bool, device=roots.device)
    mask = level_mask(reads, stable, base, drafter.embedding.dtype)
    outputs = read_blocks(drafter, cache, drafter.blocks(roots), positions, mask)[:, 1:]
    return drafter.logits(outputs.flatten(0, 1)).unflatten(0, (len(roots), -1))


def block_step(drafter: FusedBlock, logits: Tensor) -> Step:
    """Scores of a level's children: those of the block's position, [B, I, W'], and of pairs.

    Below the block's last position all tokens are equally likely, apart from pairs.
    """

    def step(level: int, tokens: Tensor, origin: Tensor, reads: Tensor) -> Tensor:
        beyond = level >= logits.shape[1]
        scores = torch.zeros_like(logits[:, 0]) if beyond else logits[:, level]
        return drafter.after(scores[:, None].expand(-1, tokens.shape[1], -1), tokens)

    return step


class BlockReading(TextReading):
    """A group that has read a text."""

    def __init__(self, group: BlockGroup, tokens: Tensor, features: Tensor, top_k: Sequence[int]) -> None:
        group.admit(tokens[:2], features[:1])
        following = tokens[None, 2:]
        group.commit(following, features[None, 1 : len(tokens) - 1], [len(tokens) - 2])
        judged = group.read(Truth(following, None), top_k).accepted[:, 0]
        self.group, self.tokens, self.accepted = group, tokens, torch.nn.functional.pad(judged, (2, 0))
        self.token_ids, self.draft_ids = group.drafters.token_ids, group.drafters.draft_ids
        self.blocks: tuple[int, Tensor, Tensor] | None = None  # newest: drafter, roots and logits

    def guesses(self, member: int, roots: Tensor) -> Tensor:
        return self.group.drafters.members[member].after(self._blocks(member, roots)[:, 0], self.tokens[roots])

    def step(self, member: int, roots: Tensor, num_nodes: int) -> Step:
        return block_step(self.group.drafters.members[member], self._blocks(member, roots))

    def _blocks(self, member: int, roots: Tensor) -> Tensor:
        """Logits of one drafter's blocks below roots [B], [B, I, W']."""
        if self.blocks is None or self.blocks[0] != member or not torch.equal(self.blocks[1], roots):
            drafter, base = self.group.drafters.members[member], len(self.tokens) - 1
            cache = self.group._member_cache(member, torch.zeros_like(roots))
            cache.reserve(base + drafter.spec.block_size)
            logits = draft_block(drafter, cache, self.tokens[roots], roots, base)
            self.blocks = member, roots, logits
        return self.blocks[2]


class BlockProposer(GroupProposer):
    """One drafter by itself: a group of one, which reads committed tokens at once."""

    def __init__(self, drafter: FusedBlock) -> None:
        super().__init__(BlockGroup(StackedBlocks([drafter])))
