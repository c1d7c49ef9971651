"""State of a pool's drafters: they read together, any of them drafts, they join and leave.

Axes: B rows, A committed tokens, W draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from torch import Tensor

from drafterforge.drafters.base import CandidateIndex, Drafter, IndexedDrafting
from drafterforge.drafters.group import DrafterGroup
from drafterforge.drafters.judging import Judgement, Truth
from drafterforge.drafters.proposer import JudgedPrompt, PromptReader
from drafterforge.drafters.registry import kind_of
from drafterforge.runtime.capture import host_copy
from drafterforge.runtime.pool import Pool, group_alone
from drafterforge.schedulers.observation import CHILDREN, best_children
from drafterforge.tree.expand import Growth
from drafterforge.tree.grow import Tree, TreeShape
from drafterforge.tree.merge import RetrievalEvidence


class PoolReader(PromptReader):
    """The readers of every group and index."""

    def __init__(self, readers: Sequence[PromptReader], judges: Iterable[tuple[Sequence[str], PromptReader]]) -> None:
        """judges: readers that may judge drafters, with the names of these."""
        self.readers, self.judges = readers, list(judges)

    def read(self, text: Tensor, features: Tensor) -> None:
        """See `PromptReader`."""
        for reader in self.readers:
            reader.read(text, features)

    def add_judge(self, names: Sequence[str], reader: PromptReader) -> None:
        """Add a reader with the hit rates of drafters `names`."""
        self.judges.append((names, reader))

    def hit_rates_of(self, names: Sequence[str]) -> np.ndarray:
        """Share of the judged tokens that were among each drafter's proposals, [N]; NaN: it was not judged."""
        rates: dict[str, float] = {}
        for judged_names, reader in self.judges:
            if (tensor := reader.hit_rates()) is not None:
                rates |= zip(judged_names, host_copy(tensor).tolist(), strict=True)
        return np.array([rates.get(name, np.nan) for name in names])


class PoolMembers:
    """Every drafter's state for every row, in groups that read in one pass."""

    def __init__(self, pool: Pool) -> None:
        self.drafters: dict[str, Drafter] = dict(pool.drafters)
        self.groups: list[tuple[list[str], DrafterGroup]] = pool.groups()
        self.index_of: dict[str, CandidateIndex] = {}  # of drafters with an index
        self._indexed: dict[str, IndexedDrafting] = {}
        for name in self.drafters:
            self._add_index(name)

    @property
    def names(self) -> list[str]:
        """Names of the drafters, group by group: the order in which `read` evaluates them."""
        return [name for names, _ in self.groups for name in names]

    @property
    def indices(self) -> list[CandidateIndex]:
        """The indices, each once; drafters with equal keys share an index."""
        return list(dict.fromkeys(self.index_of.values()))

    def prompt_reader(self, judged: Callable[[Sequence[str]], JudgedPrompt | None] = lambda _: None) -> PoolReader:
        """See `Proposer`.  judged: maps names of drafters to the tokens on which these are judged, None for none."""
        readers = [group.prompt_reader(judged(names)) for names, group in self.groups]
        indices = [index.prompt_reader() for index in self.indices]
        return PoolReader([*readers, *indices], zip([list(names) for names, _ in self.groups], readers, strict=True))

    def join_row(self, reader: PoolReader, text: Tensor, features: Tensor) -> None:
        """See `Proposer`."""
        for state, part in zip(self._states(), reader.readers, strict=True):
            state.join_row(part, text, features)

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""
        for state in self._states():
            state.keep(rows)

    def commit(self, tokens: Tensor, features: Tensor, counts: list[int]) -> None:
        """Remember committed tokens to read, see `DrafterGroup`."""
        for state in self._states():
            state.commit(tokens, features, counts)

    def read(self, truth: Truth | None, top_k: Callable[[str], int]) -> Judgement | None:
        """Let all drafters read; if the truth is given, evaluate them, in the order of `names`.

        Without the truth a drafter may defer reading until it drafts.  top_k: number of a drafter's proposals that
        count.
        """
        judgements = [group.read(truth, [top_k(name) for name in names]) for names, group in self.groups]
        judgement = None if truth is None else Judgement.join(judgements)
        return self.read_indices(judgement, truth, top_k)

    def read_indices(
        self, judgement: Judgement | None, truth: Truth | None, top_k: Callable[[str], int]
    ) -> Judgement | None:
        """Let the indices read; adds their proposals to the judgement of their drafters, if there is one."""
        order = self.names
        for index in self.indices:
            names = [name for name, own_index in self.index_of.items() if own_index is index]
            proposals = index.read(truth, [top_k(name) for name in names])
            if judgement is not None:
                rows = [order.index(name) for name in names]
                judgement = judgement.add_proposals(rows, proposals, by_mass=truth.distributions is not None)
        return judgement

    def children(self, name: str, rows: list[int]) -> Tensor:
        """Log-probabilities of a drafter's best children of the roots of some rows, see `Observation`."""
        group, member = self._find(name)
        return best_children(group.guesses(member, rows), CHILDREN)

    def embedding(self, name: str) -> Tensor:
        """The target's embedding that a drafter reads, [V, H]."""
        return self.drafters[name].embedding

    def draft(
        self,
        name: str,
        rows: list[int],
        root: Tensor,
        shape: TreeShape,
        growth: Growth | None = None,
        proposals: bool = False,
    ) -> Tree:
        """Trees of one drafter, and its index if it has one, below the roots [B'] of some rows.

        proposals: with `Tree.proposals`.
        """
        group, member = self._find(name)
        if name not in self.index_of:
            return group.draft(member, rows, root, shape, growth, proposals=proposals)

        def draft(subset: Sequence[int], growth: Growth, retrieval: RetrievalEvidence) -> Tree:
            return group.draft(member, [rows[index] for index in subset], root[subset], shape, growth, retrieval)

        evidence = self.index_of[name].evidence(rows, shape.depth)
        return self._indexed[name].draft(evidence, root, shape, draft)

    def add(self, name: str, drafter: Drafter, texts: Sequence[Tensor], features: Sequence[Tensor]) -> None:
        """Add a drafter in a group of its own; it reads each row's text so far.  features: as for `admit`."""
        self.drafters[name] = drafter
        group, index = group_alone(drafter), self._add_index(name)
        for text, feature in zip(texts, features, strict=True):
            group.admit(text, feature)
            if index is not None:
                index.admit(text, feature)
        self.groups.append(([name], group))

    def remove(self, name: str) -> None:
        """Remove a drafter."""
        del self.drafters[name]
        self.index_of.pop(name, None), self._indexed.pop(name, None)
        for position, (names, group) in enumerate(self.groups):
            if names == [name]:
                del self.groups[position]
                break
            if name in names:
                group.remove(names.index(name))
                names.remove(name)
                break

    def _states(self) -> list[DrafterGroup]:
        return [*(group for _, group in self.groups), *self.indices]

    def _find(self, name: str) -> tuple[DrafterGroup, int]:
        return next((group, names.index(name)) for names, group in self.groups if name in names)

    def _add_index(self, name: str) -> CandidateIndex | None:
        """Give a drafter its index; returns the index if it is new and has read nothing."""
        drafter = self.drafters[name]
        indexed = kind_of(drafter).indexed_drafting(drafter)
        if indexed is None:
            return None
        shared = next((self.index_of[owner] for owner, use in self._indexed.items() if use.key == indexed.key), None)
        self._indexed[name] = indexed
        self.index_of[name] = indexed.index() if shared is None else shared
        return self.index_of[name] if shared is None else None
