"""A group of EAGLE-3 drafters with equal architectures: all read committed tokens in one pass, any of them drafts.

Reading may be deferred: unread tokens are queued until all drafters read them together, or one needs them to draft.
Axes: N drafters, B rows, A committed tokens, H hidden, W draft vocabulary; cache rows are ordered drafter by drafter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.propose import (
    DrafterSteps,
    append_slots,
    draft_levels,
    layer_and_head,
    new_draft_cache,
)
from drafterforge.drafters.eagle3.stacked import StackedDrafters
from drafterforge.drafters.group import DrafterGroup, GroupProposer, TextReading
from drafterforge.drafters.judging import Judgement, Truth, judge
from drafterforge.drafters.proposer import JudgedPrompt, PromptReader
from drafterforge.kernels.attention import additive
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.tree.expand import Growth, Step, expand
from drafterforge.tree.grow import Tree, TreeShape
from drafterforge.tree.merge import RetrievalEvidence

JUDGED_TOGETHER = 32  # tokens of a prompt for which logits of all drafters are held at once


@dataclass
class NewestState:
    """State of a drafter, which may have read more than the group."""

    stable: list[int]  # stable slots of each row
    last: Tensor  # output of the newest one, [B, H]
    logits: Tensor  # of `last`, [B, W]


class StackReader(PromptReader):
    """Reads a prompt into a separate row, which then joins the other rows."""

    def __init__(self, drafters: StackedDrafters, judged: JudgedPrompt | None = None) -> None:
        """judged: the tokens of `hit_rates`; None: none."""
        self.judged, self.accepted = judged, []  # whether drafters proposed the tokens judged so far, [N, A]
        self.row = object.__new__(StackedGroup)
        self.row.drafters, self.row.newer = drafters, {}
        self.row.cache = new_draft_cache(drafters.members[0], len(drafters.members))
        self.row.stable = [0]

    def read(self, text: Tensor, features: Tensor) -> None:
        begin = len(text) - len(features)  # index of the first token of this part
        cut = len(text) if self.judged is None else min(max(self.judged.first, begin), len(text))
        if cut > begin:
            self.row.unread = [[(text[begin:cut], features[: cut - begin])]]
            self.row.read()
        for start in range(cut, len(text), JUDGED_TOGETHER):
            part = slice(start, start + JUDGED_TOGETHER)
            self.accepted.append(
                self._judge(text[part], features[start - begin :][:JUDGED_TOGETHER], self.judged.top_k)
            )
            self.row.outputs = None

    def judge(self, text: Tensor, features: Tensor, top_k: int) -> list[bool]:
        accepted = self._judge(text[-len(features) :], features, [top_k] * len(self.row.drafters.members))
        return [hit > 0.0 for hit in accepted[0].tolist()]

    def hit_rates(self) -> Tensor | None:
        return torch.cat(self.accepted, dim=1).mean(dim=1) if self.accepted else None

    def _judge(self, tokens: Tensor, features: Tensor, top_k: Sequence[int]) -> Tensor:
        """Read tokens [A] with features [A, 3H]; whether each drafter would have proposed them, [N, A]."""
        self.row.unread = [[(tokens, features)]]
        return self.row.read(Truth(tokens[None], None), top_k).accepted[:, 0]


class StackedGroup(DrafterGroup):
    """State of N drafters for every row."""

    judges_prompts = True

    def __init__(self, drafters: StackedDrafters) -> None:
        self.cache = new_draft_cache(drafters.members[0], 0)
        self.drafters = drafters
        embedding = drafters.embedding
        self.stable: list[int] = []  # of each row: stable slots that all drafters have
        self.last = embedding.new_empty(len(drafters.members), 0, embedding.shape[1])  # newest outputs, [N, B, H]
        self.logits = embedding.new_empty(len(drafters.members), 0, drafters.token_ids.shape[1])  # of `last`, [N, B, W]
        self.unread: list[list[tuple[Tensor, Tensor]]] = []  # of each row: tokens [A] and features [A, 3H]
        self.newer: dict[int, NewestState] = {}  # of drafters that have read more than the group
        self.outputs: tuple[Tensor, Tensor] | None = None  # outputs [N, B * A, H], logits [N, B * A, W] last judged

    def admit(self, text: Tensor, features: Tensor) -> None:
        reader = self.prompt_reader()
        reader.read(text, features)
        self.join_row(reader, text, features)

    def prompt_reader(self, judged: JudgedPrompt | None = None) -> StackReader:
        return StackReader(self.drafters, judged)

    def join_row(self, reader: StackReader, text: Tensor, features: Tensor) -> None:
        if any(self.unread):
            self.read()
        self.newer, row = {}, reader.row
        self.cache = _merge_caches(self.cache, row.cache, len(self.drafters.members)) if self.stable else row.cache
        self.last, self.logits = torch.cat((self.last, row.last), 1), torch.cat((self.logits, row.logits), 1)
        self.stable, self.unread = self.stable + row.stable, [*self.unread, []]

    def keep(self, rows: list[int]) -> None:
        index = torch.tensor(rows, dtype=torch.long, device=self.last.device)
        data, count = self.cache.data, len(self.drafters.members)
        self.cache.replace(data.unflatten(2, (count, -1))[:, :, :, index].flatten(2, 3))
        self.last, self.logits = self.last[:, index], self.logits[:, index]
        self.stable, self.unread = [self.stable[row] for row in rows], [self.unread[row] for row in rows]
        for state in self.newer.values():
            state.stable = [state.stable[row] for row in rows]
            state.last, state.logits = state.last[index], state.logits[index]

    def remove(self, member: int) -> None:
        count = len(self.drafters.members)
        members = [index for index in range(count) if index != member]
        self.drafters = StackedDrafters([self.drafters.members[index] for index in members])
        self.cache.replace(self.cache.data.unflatten(2, (count, -1))[:, :, members].flatten(2, 3))
        self.last, self.logits = self.last[members], self.logits[members]
        self.newer = {members.index(index): state for index, state in self.newer.items() if index != member}

    def commit(self, tokens: Tensor, features: Tensor, counts: list[int]) -> None:
        for row, count in enumerate(counts):
            self.unread[row].append((tokens[row, :count], features[row, :count]))

    def read(self, truth: Truth | None = None, top_k: Sequence[int] = ()) -> Judgement | None:
        """See `DrafterGroup`; a drafter that has read unread tokens to draft reads them again with the others."""
        if truth is None and not any(self.unread):
            return None
        drafters, batch = self.drafters, len(self.stable)
        tokens, features, counts = self._unread([0] * batch)
        width, judging = tokens.shape[1], truth is not None
        single = batch == len(drafters.members) == 1
        if single:
            rows = slice(width - 1, width)
            hidden, logits = self._read_single(tokens[0], features[0], judging)
        else:
            rows = torch.arange(batch, device=tokens.device) * width + torch.tensor(counts, device=tokens.device) - 1
            hidden, logits = self._read_all(tokens, features, rows, judging)
        judgement = None
        if judging:
            self.outputs = hidden, logits
            guesses = logits.unflatten(1, (batch, width))
            guesses = torch.cat((self.logits[:, :, None], guesses[:, :, :-1]), dim=2)  # logits before each token
            judgement = judge(guesses, drafters.token_ids, drafters.draft_ids, truth, top_k)
            hidden, logits = hidden[:, rows], logits[:, rows]
        self.last, self.logits = hidden, logits
        self.stable = [stable + count for stable, count in zip(self.stable, counts, strict=True)]
        self.unread, self.newer = [[] for _ in self.stable], {}
        return judgement

    def read_text(self, tokens: Tensor, features: Tensor, top_k: Sequence[int]) -> StackReading:
        return StackReading(self, tokens, features, top_k)

    def hits(self, row: int, text: Tensor, features: Tensor, top_k: int) -> list[bool]:
        self.read()
        reader = self.prompt_reader()
        reader.row.cache = self.cache.copy_rows(torch.tensor([row], device=text.device))
        reader.row.stable = [self.stable[row] - len(features)]
        reader.row.logits = self.logits[:, row : row + 1]  # of another position: the first token is not judged
        return reader.judge(text, features, top_k)[1:]

    def _read_all(self, tokens: Tensor, features: Tensor, rows: Tensor, all_slots: bool) -> tuple[Tensor, Tensor]:
        """Outputs [N, R, H] and logits [N, R, W] of all slots, or of the newest ones, `rows` [B]."""
        width = tokens.shape[1]
        slots = torch.tensor(self.stable, device=tokens.device)[:, None] + torch.arange(width, device=tokens.device)
        used = max(self.stable) + width
        if len(self.stable) == 1:
            self.cache.set_slots(used - width, width)
        else:
            self.cache.set_ragged_slots(slots.repeat(len(self.drafters.members), 1), used)
        return read_slots(self.drafters, self.cache, tokens, features, slots, used, None if all_slots else rows)

    def _read_single(self, tokens: Tensor, features: Tensor, all_slots: bool) -> tuple[Tensor, Tensor]:
        """As `_read_all` for one drafter and one row, tokens [A] and features [A, 3H]: without padding or stacking."""
        drafter, width, start = self.drafters.members[0], tokens.shape[0], self.stable[0]
        self.cache.set_slots(start, width)
        slots = start + torch.arange(width, device=tokens.device)
        mask = None  # the newest slot reads all slots
        if all_slots and width > 1:
            mask = torch.arange(start + width, device=tokens.device) <= slots[:, None]
            mask = additive(mask, drafter.embedding.dtype)[None]
        rows = None if all_slots else torch.tensor([width - 1], device=tokens.device)
        fused = drafter.fuse(features)[None]
        hidden, logits = layer_and_head(drafter, self.cache, tokens[None], fused, slots[None], mask, rows=rows)
        return hidden[None], logits[None]

    def _unread(self, skip: list[int]) -> tuple[Tensor, Tensor, list[int]]:
        """Unread tokens [B, A] and features [B, A, 3H] after the first skip[b], padded, and their counts."""
        if len(self.unread) == len(self.unread[0]) == 1 and not skip[0]:
            tokens, features = self.unread[0][0]
            return tokens[None], features[None], [len(tokens)]
        rows = [_unread_after(row, done) for row, done in zip(self.unread, skip, strict=True)]
        tokens, features = [tokens for tokens, _ in rows], [features for _, features in rows]
        counts = [len(part) for part in tokens]
        return pad_sequence(tokens, batch_first=True), pad_sequence(features, batch_first=True), counts

    def catch_up(self, member: int) -> None:
        """Let one drafter read its unread tokens."""
        drafter, stable = self.drafters.members[member], self.stable
        if member in self.newer:
            stable = self.newer[member].stable
        tokens, features, counts = self._unread([count - read for count, read in zip(stable, self.stable, strict=True)])
        if not any(counts):
            return
        used = max(stable) + tokens.shape[1]
        self.cache.reserve(used)
        start, added = (torch.tensor(part, device=tokens.device) for part in (stable, counts))
        state = append_slots(drafter, self._member_cache(member), tokens, features, start, added, used)
        stable = [slots + count for slots, count in zip(stable, counts, strict=True)]
        self.newer[member] = NewestState(stable, *state)

    def _member_cache(self, member: int) -> KeyValueCache:
        """One drafter's part of the cache: all of it, or a view, valid until more memory is reserved."""
        batch = len(self.stable)
        if len(self.drafters.members) == 1:
            return self.cache
        return self.cache.rows(member * batch, (member + 1) * batch)

    def guesses(self, member: int, rows: list[int]) -> Tensor:
        logits = self._newest_state(member).logits
        return logits if len(rows) == len(self.stable) else logits[rows]

    def _newest_state(self, member: int) -> NewestState:
        if any(self.unread):
            if len(self.drafters.members) == 1:
                self.read()
            else:
                self.catch_up(member)
        return self.newer.get(member) or NewestState(self.stable, self.last[member], self.logits[member])

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
        state = self._newest_state(member)
        base = max(state.stable[row] for row in rows)
        self.cache.reserve(base + shape.top_k * shape.depth)
        cache, last, logits = self._member_cache(member), state.last, state.logits
        stable = torch.tensor([state.stable[row] for row in rows], device=root.device)
        if len(rows) < len(self.stable):
            index = torch.tensor(rows, device=root.device)
            cache = cache.copy_rows(index)
            last, logits = last[index], logits[index]
        drafter: FusedDrafter = self.drafters.members[member]
        return draft_levels(drafter, cache, last, root, stable, base, shape, logits, growth, retrieval, proposals)


class StackReading(TextReading):
    """A group that has read a text: slot t - 1 pairs token t with the feature before it and predicts token t + 1."""

    def __init__(self, group: StackedGroup, tokens: Tensor, features: Tensor, top_k: Sequence[int]) -> None:
        group.admit(tokens[:2], features[:1])
        first, following = (group.last, group.logits), tokens[None, 2:]
        group.commit(following, features[None, 1 : len(tokens) - 1], [len(tokens) - 2])
        judged = group.read(Truth(following, None), top_k).accepted[:, 0]
        self.group, self.tokens, self.accepted = group, tokens, torch.nn.functional.pad(judged, (2, 0))
        self.token_ids, self.draft_ids = group.drafters.token_ids, group.drafters.draft_ids
        self.outputs, self.logits = (  # of every slot, [N, T - 1, H] and [N, T - 1, W]
            torch.cat(parts, dim=1) for parts in zip(first, group.outputs, strict=True)
        )

    def guesses(self, member: int, roots: Tensor) -> Tensor:
        return self.logits[member, roots - 1]

    def step(self, member: int, roots: Tensor, num_nodes: int) -> Step:
        """See `TextReading`; each root has a copy of the text's keys."""
        base = len(self.tokens) - 1
        keys = self.group.cache.data[:, :, member : member + 1, :, :base]
        cache = KeyValueCache(1, len(roots), keys.shape[3], keys.shape[5], keys.dtype, keys.device)
        cache.reserve(base + num_nodes)
        cache.data[:, :, :, :, :base] = keys
        return DrafterSteps(self.group.drafters.members[member], cache, self.outputs[member, roots - 1], roots, base)


class Eagle3Proposer(GroupProposer):
    """One drafter by itself: a group of one, which reads committed tokens at once."""

    def __init__(self, drafter: FusedDrafter) -> None:
        super().__init__(StackedGroup(StackedDrafters([drafter])))

    @property
    def last(self) -> Tensor:
        """Outputs of each row's newest stable slot, [B, H]."""
        return self.group.last[0]

    def draft_chains(self, root: Tensor, depth: int, draw: Callable[[int, Tensor], Tensor]) -> Tree:
        """Chains of `depth` sampled tokens below the roots [B].

        draw(level, logits [B, W]) returns the draft ids of the tokens of a level, [B].
        """
        group, drafter = self.group, self.group.drafters.members[0]
        base = max(group.stable)
        group.cache.reserve(base + depth)
        stable = torch.tensor(group.stable, device=root.device)
        step = DrafterSteps(drafter, group.cache, self.last, stable, base)

        def drawn(level: int, logits: Tensor) -> Tensor:
            """Logits [B, W] with which the beam of one node takes the drawn token."""
            chain = torch.full_like(logits, -torch.inf, dtype=torch.float32)
            return chain.scatter_(1, draw(level, logits)[:, None], 0.0)

        def chain_step(level: int, tokens: Tensor, origin: Tensor, reads: Tensor) -> Tensor:
            return drawn(level, step(level, tokens, origin, reads)[:, 0])[:, None]

        shape = TreeShape(depth + 1, depth, 1)
        return expand(root, drawn(0, group.logits[0]), shape, chain_step, drafter.token_ids)


def read_slots(
    drafters: StackedDrafters,
    cache: KeyValueCache,
    tokens: Tensor,
    features: Tensor,
    slots: Tensor,
    used: int,
    rows: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Let all drafters read tokens [B, A] with features [B, A, 3H]; outputs [N, R, H] and logits [N, R, W].

    cache: of all drafters, set to the slots that the tokens are written to.  slots: the same, [B, A].  used: slots that
    attention reads.  rows: indices of the R flattened tokens whose outputs are returned, one of each row; None: all.
    """
    count, batch = len(drafters.members), tokens.shape[0]
    reach = slots[:, :, None] if rows is None else slots.flatten()[rows][:, None, None]
    mask = additive(torch.arange(used, device=tokens.device) <= reach, drafters.embedding.dtype)
    if batch > 1:
        mask = mask.repeat(count, 1, 1)
    fused, packed = drafters.fuse(features.flatten(0, 1)), drafters.packed
    if packed is not None and packed.takes(repeated := tokens.repeat(count, 1), mask.shape[1], cache, mask):
        if rows is not None:
            rows = (torch.arange(count)[:, None] * tokens.numel() + rows).flatten()
        hidden, positions = fused.reshape(*repeated.shape, -1), slots.repeat(count, 1)
        outputs, logits = packed(repeated, hidden, None, positions, drafters.rope, cache, mask, rows)
        return outputs.unflatten(0, (count, -1)), logits.unflatten(0, (count, -1))

    def by_row(x: Tensor) -> Tensor:
        return x.unflatten(1, (batch, -1)).flatten(0, 1)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = cache.write(0, by_row(k), by_row(v))
        mixed = drafters.kernels.grouped_attention(by_row(q), keys, values, mask)
        return mixed.unflatten(0, (count, batch)).flatten(1, 2)

    hidden = drafters.layer(drafters.embed(tokens.flatten()), fused, slots.flatten(), attend, rows=rows)
    return hidden, drafters.logits(hidden)


def _unread_after(parts: Sequence[tuple[Tensor, Tensor]], done: int) -> tuple[Tensor, Tensor]:
    """Tokens and features of the parts after the first `done` tokens; skips parts that lie before."""
    num_wanted = sum(len(tokens) for tokens, _ in parts) - done
    suffix: list[tuple[Tensor, Tensor]] = []
    count = 0
    for part in reversed(parts):
        if suffix and count >= num_wanted:
            break
        suffix.append(part)
        count += len(part[0])
    tokens, features = zip(*reversed(suffix), strict=True)
    return torch.cat(tokens)[count - num_wanted :], torch.cat(features)[count - num_wanted :]


def _merge_caches(cache: KeyValueCache, added: KeyValueCache, count: int) -> KeyValueCache:
    """The rows of both caches, ordered drafter by drafter.  count: number of drafters."""
    slots = max(cache.data.shape[4], added.data.shape[4])
    cache.grow(slots)
    added.grow(slots)
    row_parts = [part.data.unflatten(2, (count, -1)) for part in (cache, added)]
    cache.replace(torch.cat(row_parts, dim=3).flatten(2, 3))
    return cache
