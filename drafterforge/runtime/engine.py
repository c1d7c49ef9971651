"""Lossless decoding of one sequence: draft a tree, verify it in one target forward, commit the confirmed walk.

Autoregressive decoding is the same engine with a tree of one node.  Axes: T tree nodes, A accepted, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from drafterforge.drafter.fused import FusedDrafter
from drafterforge.errors import DrafterforgeError
from drafterforge.kernels.attention import additive
from drafterforge.runtime.propose import Eagle3Proposer
from drafterforge.target.load import Target
from drafterforge.tree.accept import accepted_path
from drafterforge.tree.grow import Tree, TreeShape, ancestor_mask, root_only


@dataclass(frozen=True)
class Cycle:
    """One draft and verification."""

    depth: int  # drafted levels asked for
    num_nodes: int  # nodes verified, root included
    accept_length: int  # tokens emitted, bonus included, cut at the end of the answer


@dataclass
class Generation:
    """A finished or running answer."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)  # cut at the end token, which is kept, and at max_new_tokens
    cycles: list[Cycle] = field(default_factory=list)
    stop_reason: str = ""  # eos | length | context
    time_s: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("prefill", "draft", "verify", "host", "total"), 0.0)
    )

    @property
    def mat(self) -> float:
        """Mean accept length of the cycles; 1 without any."""
        return sum(cycle.accept_length for cycle in self.cycles) / len(self.cycles) if self.cycles else 1.0


class Engine:
    """Decodes prompts with a target and, optionally, a drafter."""

    def __init__(self, target: Target, drafter: FusedDrafter | None = None, shape: TreeShape | None = None) -> None:
        self.target, self.drafter = target, drafter
        self.shape = shape or TreeShape(num_tokens=1, depth=0, top_k=1)

    def generate(self, prompt: list[int], max_new_tokens: int) -> Generation:
        """The whole answer to one prompt of token ids."""
        *_, answer = self.stream(prompt, max_new_tokens)
        return answer

    @torch.inference_mode()
    def stream(self, prompt: list[int], max_new_tokens: int) -> Iterator[Generation]:
        """Yields the growing answer after the prefill and after every cycle."""
        room = self.target.max_positions - len(prompt)
        if not prompt or room < 1:
            raise DrafterforgeError(
                f"the prompt has {len(prompt)} tokens; this target reads 1 to {self.target.max_positions - 1}"
            )
        limit = min(max_new_tokens, room)
        answer = Generation(list(prompt))
        began = self._now()
        state = _Sequence(self.target, self.drafter, self._now)
        mark = self._now()
        state.prefill(prompt)
        answer.time_s["prefill"] = self._now() - mark
        answer.tokens.append(int(state.root))
        while True:
            self._stop(answer, limit, "length" if limit == max_new_tokens else "context")
            answer.time_s["total"] = self._now() - began
            yield answer
            if answer.stop_reason:
                return
            self._cycle(state, answer, limit)

    def _cycle(self, state: _Sequence, answer: Generation, limit: int) -> None:
        """Draft, verify, commit; appends what was confirmed."""
        shape, marks = self.shape, [self._now()]
        depth = min(shape.depth, limit - len(answer.tokens) - 1)  # deeper levels could only be cut off again
        tree = state.draft(TreeShape(shape.num_tokens, depth, shape.top_k))
        marks.append(self._now())
        chosen, features = state.verify(tree, depth)
        marks.append(self._now())
        confirmed = state.commit(tree, chosen, features)
        marks.append(self._now())
        emitted = self._cut(confirmed, limit - len(answer.tokens))
        answer.tokens.extend(emitted)
        answer.cycles.append(Cycle(depth, tree.tokens.numel(), len(emitted)))
        marks.append(self._now())
        spent = [after - before for before, after in pairwise(marks)]
        answer.time_s["draft"] += spent[0] + state.refresh_s
        answer.time_s["verify"] += spent[1]
        answer.time_s["host"] += spent[2] - state.refresh_s + spent[3]

    def _cut(self, tokens: list[int], room: int) -> list[int]:
        """Tokens up to and including the first end token, at most `room`."""
        for place, token in enumerate(tokens[:room]):
            if token in self.target.eos_ids:
                return tokens[: place + 1]
        return tokens[:room]

    def _stop(self, answer: Generation, limit: int, reason: str) -> None:
        if answer.tokens[-1] in self.target.eos_ids:
            answer.stop_reason = "eos"
        elif len(answer.tokens) >= limit:
            answer.stop_reason = reason

    def _now(self) -> float:
        """Seconds; waits for the GPU, so that a step is charged what it costs."""
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        return time.perf_counter()


class _Sequence:
    """Caches and root of one sequence: all before the root is committed, the root's own key is not yet computed."""

    def __init__(
        self, target: Target, drafter: FusedDrafter | None, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.target, self.now = target, now
        self.cache = target.new_cache()
        self.proposer = None if drafter is None else Eagle3Proposer(drafter)
        self.length = 0  # committed tokens, the root not included
        self.refresh_s = 0.0

    def prefill(self, prompt: list[int]) -> None:
        """Read the prompt; its most probable continuation becomes the root."""
        tokens = torch.tensor(prompt, device=self.target.device)
        positions = torch.arange(len(prompt), device=tokens.device)
        self.cache.place(0, len(prompt))
        states, features = self.target.forward(tokens[None], positions[None], self.cache)
        self.root = self.target.logits(states[0, -1:]).argmax(dim=-1)[0]
        self.length = len(prompt)
        if self.proposer is not None:
            self.proposer.refresh(torch.cat((tokens[1:], self.root[None])), features[0])

    def draft(self, shape: TreeShape) -> Tree:
        """The tree to verify."""
        return root_only(self.root) if self.proposer is None else self.proposer.draft(self.root, shape)

    def verify(self, tree: Tree, depth: int) -> tuple[Tensor, Tensor]:
        """The target's token after each node, [T], and the nodes' features, [T, 3H]."""
        count = tree.tokens.numel()
        self.cache.place(self.length, count)
        self.ancestors = ancestor_mask(tree.parents, depth)
        mask = None
        if count > 1:
            past = torch.ones(count, self.length, dtype=torch.bool, device=self.root.device)
            mask = additive(torch.cat((past, self.ancestors), dim=1), self.target.dtype)[None]
        states, features = self.target.forward(tree.tokens[None], (self.length + tree.levels)[None], self.cache, mask)
        return self.target.logits(states[0]).argmax(dim=-1), features[0]

    def commit(self, tree: Tree, chosen: Tensor, features: Tensor) -> list[int]:
        """Keep the accepted walk; returns its tokens below the root and the bonus, which becomes the root."""
        path = accepted_path(tree, chosen, self.ancestors)
        tokens = torch.cat((tree.tokens[path[1:]], chosen[path[-1:]]))
        self.cache.move(self.length + path, self.length)
        self.length += path.numel()
        self.root = tokens[-1]
        began = self.now()
        if self.proposer is not None:
            self.proposer.refresh(tokens, features[path])
        self.refresh_s = self.now() - began
        return tokens.tolist()
