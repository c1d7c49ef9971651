"""Sequences that are decoded together: draft a tree for each, verify all in one target forward, commit the walks.

All before a row's root is committed; the root's own key is computed by the next verification.  Tree slots of all rows
begin behind the longest text, so that rows of different lengths share a pass; what lies between is never read.
Axes: B rows, T tree nodes, A accepted tokens, V vocabulary.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from drafterforge.drafters.proposer import Proposer, Verified
from drafterforge.kernels.best import argmax
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.runtime.sampling import GREEDY, Picker, Sampling
from drafterforge.runtime.stopping import StopRule
from drafterforge.targets.load import Target
from drafterforge.tree.accept import accepted_path, sampled_path
from drafterforge.tree.grow import Tree, TreeShape, ancestor_mask, root_only
from drafterforge.tree.masks import level_mask

STEPS = ("prefill", "draft", "verify", "select", "schedule", "host", "total")


@dataclass(frozen=True, slots=True)
class Cycle:
    """One draft and verification of one row; seconds are those of the whole batch."""

    depth: int  # drafted levels asked for
    num_nodes: int  # nodes verified, root included
    accept_length: int  # tokens emitted, bonus included, cut at the end of the answer
    accepted: int = 0  # drafted tokens among them
    draft_s: float = 0.0
    verify_s: float = 0.0
    host_s: float = 0.0  # acceptance, commit and bookkeeping
    select_s: float = 0.0  # choosing the drafter and judging all of them
    drafter: str = ""  # that drafted, where there are several
    top_k: int = 0  # width asked for
    schedule_s: float = 0.0  # choosing the tree's shape
    refresh_s: float = 0.0  # of draft_s: the drafter's reading of what the cycle committed


@dataclass
class Generation:
    """A finished or running answer."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)  # cut at the end token, which is kept, and at max_new_tokens
    text: str = ""  # of the tokens, without special ones, and cut before a stop string; empty without a tokenizer
    cycles: list[Cycle] = field(default_factory=list)
    stop_reason: str = ""  # eos | stop | length | context
    time_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STEPS, 0.0))

    @property
    def mat(self) -> float:
        """Mean accept length of the cycles; 1 without any."""
        return sum(cycle.accept_length for cycle in self.cycles) / len(self.cycles) if self.cycles else 1.0


@dataclass
class Row:
    """One sequence being decoded."""

    answer: Generation
    rule: StopRule
    sampling: Sampling
    began: float
    length: int = 0  # committed tokens, the root not included

    @property
    def text(self) -> list[int]:
        """Prompt and answer so far, root included."""
        return self.answer.prompt + self.answer.tokens

    def take(self, tokens: list[int]) -> list[int]:
        """Append what of the confirmed tokens belongs to the answer."""
        taken = self.rule.take(tokens)
        self.answer.tokens.extend(taken)
        self.answer.stop_reason = self.rule.stop_reason
        if self.rule.stream is not None:
            self.answer.text = self.rule.text
        return taken


@dataclass(frozen=True)
class Found:
    """What a cycle confirmed, on the host."""

    sizes: list[int]  # nodes of each tree, padding left out
    counts: list[int]  # tokens confirmed, bonus included
    paths: list[list[int]]  # nodes of the walks, padded
    confirmed: list[list[int]]  # tokens after them

    @staticmethod
    def read(packed: Tensor) -> Found:
        """From `pack`: the one time in a cycle that the host waits for the device."""
        rows, width = packed.tolist(), packed.shape[1] // 2
        return Found(
            sizes=[row[0] for row in rows],
            counts=[row[1] for row in rows],
            paths=[row[2 : 1 + width] for row in rows],
            confirmed=[row[1 + width : 1 + width + row[1]] for row in rows],
        )


def pack(tree: Tree, path: Tensor, counts: Tensor, tokens: Tensor) -> Tensor:
    """Sizes, counts [B], walks and tokens [B, D + 1] in one tensor."""
    sizes = (tree.parents != torch.arange(tree.parents.shape[1], device=path.device)).sum(dim=1) + 1
    return torch.cat((sizes[:, None], counts[:, None], path, tokens), dim=1)


class Batch:
    """Rows, their caches and their drafter; rows join and leave between cycles."""

    def __init__(self, target: Target, proposer: Proposer | None = None, invariant: bool = False) -> None:
        """invariant: verify with numbers that do not depend on the tree or on the other rows, bit for bit."""
        self.target, self.proposer, self.invariant = target, proposer, invariant
        self.cache = target.new_cache(0)
        self.rows: list[Row] = []
        self.root = torch.empty(0, dtype=torch.long, device=target.device)
        self.seen: Tensor | None = None  # [B, V] tokens of each text, where a repetition penalty asks for them
        self.picker: Picker | None = None

    def now(self) -> float:
        """Seconds; waits for the GPU, so that a step is charged what it costs."""
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        return time.perf_counter()

    def admit(self, prompt: list[int], rule: StopRule, sampling: Sampling = GREEDY) -> Row:
        """Read a prompt, choose the first token of its answer, and add the row unless that ends it."""
        row = Row(Generation(list(prompt)), rule, sampling, began=self.now(), length=len(prompt))
        tokens = torch.tensor(prompt, device=self.target.device)
        cache = self.target.new_cache()
        cache.place(0, len(prompt))
        states, features = self.target.forward(
            tokens[None], torch.arange(len(prompt), device=tokens.device)[None], cache
        )
        picker = self._picker([row])
        seen = None
        if picker.penalised:
            seen = torch.zeros(1, picker.vocab_size, dtype=torch.bool, device=tokens.device)
            seen[0, tokens] = True
        uniform = picker.noise([len(prompt)], 1)
        root = picker(self.target.logits(states[:, -1]), None if uniform is None else uniform[:, 0], seen)
        row.take(root.tolist())
        read = self.now()
        row.answer.time_s["prefill"] = read - row.began
        if not row.answer.stop_reason:
            self.rows.append(row)
            self.picker = self._picker(self.rows)
            self._see(seen, root)
            self._join(cache, torch.cat((tokens, root)), features[0])
        done = self.now()
        row.answer.time_s["draft"] = done - read
        row.answer.time_s["total"] = done - row.began
        return row

    def _join(self, cache: KeyValueCache, text: Tensor, features: Tensor) -> None:
        """Take over the keys of a new row's prompt; text: [P + 1], root included, features: [P, 3H]."""
        if self.proposer is not None:
            self.proposer.admit(text, features)
        if len(self.rows) > 1:
            self.cache.put_rows(cache, [])
        else:
            self.cache = cache
        self.root = torch.cat((self.root, text[-1:]))

    def _picker(self, rows: list[Row]) -> Picker:
        vocab_size = self.target.head_weight.shape[0]
        return Picker([row.sampling for row in rows], vocab_size, self.target.device)

    def _see(self, seen: Tensor | None, root: Tensor) -> None:
        """Add the tokens of a new row, once any row is penalised."""
        if seen is None and self.seen is None:
            return

        def blank(rows: int) -> Tensor:
            return torch.zeros(rows, self.target.head_weight.shape[0], dtype=torch.bool, device=root.device)

        seen = blank(1) if seen is None else seen.scatter(1, root[:, None], True)
        self.seen = torch.cat((blank(len(self.rows) - 1) if self.seen is None else self.seen, seen))

    def cycle(self, shape: TreeShape) -> list[Row]:
        """Draft, verify and commit for every row; returns the rows that ended, which are no longer here."""
        marks, chosen = [self.now()], self._chosen_s()
        tree, depth = root_only(self.root), 0
        if self.proposer is not None:
            shape = self.proposer.plan(shape, [row.rule.room - 1 for row in self.rows])  # more could only be cut off
            tree, depth = self.proposer.draft(self.root, shape), shape.depth
        marks.append(self.now())
        logits, features = self.verify(tree, depth)
        uniform = self.picker.noise([row.length + 1 for row in self.rows], depth + 1)
        path, counts, tokens = accept(tree, logits, self.ancestors, depth, self.picker, uniform, self.seen)
        if self.proposer is not None:
            self.proposer.verified = Verified(tree, logits, path, self.picker, self.seen)
        marks.append(self.now())
        found = Found.read(pack(tree, path, counts, tokens))
        counts = found.counts
        self._commit(path, found.paths, counts)
        self.root = tokens.gather(1, torch.tensor(counts, device=tokens.device)[:, None] - 1)[:, 0]
        emitted = [row.take(confirmed) for row, confirmed in zip(self.rows, found.confirmed, strict=True)]
        marks.append(self.now())
        self._refresh(tokens, features, path, counts)
        marks.append(self.now())
        draft_s, verify_s, host_s, refresh_s = (after - before for before, after in pairwise(marks))
        select_s, schedule_s = (after - before for before, after in zip(chosen, self._chosen_s(), strict=True))
        draft_s += refresh_s - select_s - schedule_s
        self._note(shape, depth, found, emitted, draft_s, verify_s, host_s, select_s, schedule_s, refresh_s)
        return self._leave()

    def _chosen_s(self) -> tuple[float, float]:
        """Seconds spent so far on choosing drafters and shapes."""
        return (0.0, 0.0) if self.proposer is None else (self.proposer.select_s, self.proposer.schedule_s)

    def _note(
        self,
        shape: TreeShape,
        depth: int,
        found: Found,
        emitted: list[list[int]],
        draft_s: float,
        verify_s: float,
        host_s: float,
        select_s: float = 0.0,
        schedule_s: float = 0.0,
        refresh_s: float = 0.0,
    ) -> None:
        """Add a cycle to every row's statistics."""
        now = time.perf_counter()
        spent = {"draft": draft_s, "verify": verify_s, "select": select_s, "schedule": schedule_s, "host": host_s}
        drafters = getattr(self.proposer, "chosen", ()) or [""] * len(self.rows)
        shapes = getattr(self.proposer, "shapes", ()) or [replace(shape, depth=depth)] * len(self.rows)
        seconds = {"draft_s": draft_s, "verify_s": verify_s, "host_s": host_s, "select_s": select_s}
        seconds |= {"schedule_s": schedule_s, "refresh_s": refresh_s}
        for place, (row, taken) in enumerate(zip(self.rows, emitted, strict=True)):
            for step, one in spent.items():
                row.answer.time_s[step] += one
            accepted, size = min(found.counts[place] - 1, len(taken)), found.sizes[place]
            tree = {"depth": shapes[place].depth, "top_k": shapes[place].top_k, "num_nodes": size}
            row.answer.cycles.append(
                Cycle(**tree, accept_length=len(taken), accepted=accepted, drafter=drafters[place], **seconds)
            )
            row.answer.time_s["total"] = now - row.began

    def _leave(self) -> list[Row]:
        """Let the rows that ended go."""
        ended = [row for row in self.rows if row.answer.stop_reason]
        if ended:
            self.keep([place for place, row in enumerate(self.rows) if not row.answer.stop_reason])
        return ended

    def verify(self, tree: Tree, depth: int) -> tuple[Tensor, Tensor]:
        """The target's logits after each node, [B, T, V], and the nodes' features, [B, T, 3H]."""
        batch, count = tree.tokens.shape
        lengths = torch.tensor([[row.length] for row in self.rows], device=self.root.device)
        self.base = max(row.length for row in self.rows)
        self.cache.place(self.base, count)
        self.ancestors = ancestor_mask(tree.parents, depth)
        mask = None
        if batch > 1 or count > 1:
            mask = level_mask(self.ancestors, lengths[:, 0], self.base, self.target.compute_dtype)
        states, features = self.target.forward(tree.tokens, lengths + tree.levels, self.cache, mask, self.invariant)
        return self.target.logits(states, self.invariant), features

    def _commit(self, path: Tensor, walks: list[list[int]], counts: list[int]) -> None:
        """Move the keys of the accepted nodes behind each row's text."""
        if len(self.rows) == 1:
            if walks[0][: counts[0]] != list(range(counts[0])):  # else they are there
                self.cache.move(self.base + path[0, : counts[0]], self.rows[0].length)
        else:
            rows, sources, destinations = [], [], []
            for place, (row, walk, count) in enumerate(zip(self.rows, walks, counts, strict=True)):
                rows += [place] * count
                sources += [self.base + node for node in walk[:count]]
                destinations += range(row.length, row.length + count)
            self.cache.move_rows(rows, sources, destinations)
        for row, count in zip(self.rows, counts, strict=True):
            row.length += count

    def _refresh(self, tokens: Tensor, features: Tensor, path: Tensor, counts: list[int]) -> None:
        """Let the drafter read what was committed, unless every row has ended."""
        if self.proposer is None or all(row.answer.stop_reason for row in self.rows):
            return
        width = max(counts)
        path = path[:, :width, None].expand(-1, -1, features.shape[2])
        self.proposer.refresh(tokens[:, :width], features.gather(1, path), counts)

    def add_drafter(self, name: str, drafter: object, cost: float | None = None) -> None:
        """Let a drafter join the pool between cycles; it reads each row's text, whose features the target repeats."""
        texts, features = [], []
        for row in self.rows:
            texts.append(torch.tensor(row.text, device=self.target.device))
            tokens = texts[-1][None, :-1]
            positions = torch.arange(tokens.shape[1], device=self.target.device)[None]
            features.append(self.target.forward(tokens, positions, None)[1][0])
        self.proposer.join(name, drafter, texts, features, cost)

    def remove_drafter(self, name: str) -> None:
        """Let a drafter of the pool go between cycles."""
        self.proposer.leave(name)

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""
        index = torch.tensor(rows, dtype=torch.long, device=self.root.device)
        self.rows = [self.rows[row] for row in rows]
        if not rows:
            self.cache = self.target.new_cache(0)
        else:
            self.cache.keep_rows(index)
            self.picker = self._picker(self.rows)
        self.root = self.root[index]
        self.seen = None if self.seen is None or not rows else self.seen[index]
        if self.proposer is not None:
            self.proposer.keep(rows)


def accept(
    tree: Tree,
    logits: Tensor,
    ancestors: Tensor,
    depth: int,
    picker: Picker,
    uniform: Tensor | None,
    seen: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Accepted walks [B, D + 1], their lengths [B], and the tokens chosen after their nodes, [B, D + 1].

    logits: [B, T, V].  uniform: noise of the positions after the root's, [B, D + 1].  seen: [B, V], the tokens of the
    walks are added.
    """
    if picker.plain:
        chosen = argmax(logits)
        path, counts = accepted_path(tree, chosen, ancestors, depth)
        return path, counts, chosen.gather(1, path)

    def pick(level: int, logits: Tensor, walking: Tensor) -> Tensor:
        token = picker(logits, None if uniform is None else uniform[:, level], seen)
        if seen is not None:
            seen.logical_or_(walking[:, None] & torch.zeros_like(seen).scatter_(1, token[:, None], True))
        return token

    return sampled_path(tree, logits, depth, pick)
