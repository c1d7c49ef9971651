"""Trees by the kernels of native.c: drafted levels, cuts, masks, confirmed walks, and what schedulers decide of them.

As everywhere in native.c a row's bits do not depend on the others; `native` compiles and loads it.
Axes: B rows, K beam nodes, P candidates of all levels, T tree nodes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.kernels import native


def walk(tokens: Tensor, parents: Tensor, chosen: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Nodes of the walks that a target confirms, [B, levels], padded with the root, and their lengths [B].

    tokens, parents, chosen: [B, T] int64, contiguous; see `tree.accept.accepted_path`.
    """
    rows, nodes = tokens.shape
    for part in (tokens, parents, chosen):
        native.require(part, (rows, nodes), torch.long)
    path, lengths = torch.empty(rows, levels, dtype=torch.long), torch.empty(rows, dtype=torch.long)
    failed = native.library().df_walk(
        tokens.data_ptr(),
        parents.data_ptr(),
        chosen.data_ptr(),
        rows,
        nodes,
        levels,
        path.data_ptr(),
        lengths.data_ptr(),
    )
    if failed:
        raise ValueError(f"a tree has a node before its parent, or a walk of more than {levels} nodes")
    return path, lengths


def reads(before: Tensor, origin: Tensor) -> Tensor:
    """Which level slots a beam reads, [B, K', L + K'] bool: what their origins read of `before` [B, K, L], themselves.

    origin: [B, K'] int64, places in the beam before.
    """
    batch, earlier, slots = before.shape
    beam = origin.shape[1]
    native.require(before, (batch, earlier, slots), torch.bool)
    native.require(origin, (batch, beam), torch.long)
    out = torch.empty(batch, beam, slots + beam, dtype=torch.bool)
    given = before.data_ptr(), origin.data_ptr(), batch, earlier, beam, slots, out.data_ptr()
    if native.library().df_reads(*given):
        raise IndexError(f"an origin lies outside the {earlier} nodes of the beam before")
    return out


def ancestors(parents: Tensor) -> Tensor:
    """Whether node j is node i or an ancestor of it, [B, T, T] bool, of contiguous parents [B, T] int64."""
    batch, nodes = parents.shape
    native.require(parents, (batch, nodes), torch.long)
    out = torch.empty(batch, nodes, nodes, dtype=torch.bool)
    if native.library().df_ancestors(parents.data_ptr(), batch, nodes, out.data_ptr()):
        raise ValueError("a tree has a node before its parent")
    return out


def mask(reads: Tensor, lengths: Tensor, base: int) -> Tensor:
    """Additive mask [B, K, base + L]: each row's first lengths [B] slots, and behind `base` those of `reads`.

    reads: [B, K, L] bool, lengths: int64, both contiguous.
    """
    batch, beam, slots = reads.shape
    native.require(reads, (batch, beam, slots), torch.bool)
    native.require(lengths, (batch,), torch.long)
    out = torch.empty(batch, beam, base + slots)
    native.library().df_mask(reads.data_ptr(), lengths.data_ptr(), batch, beam, slots, base, out.data_ptr())
    return out


def children(logp: Tensor, least: float) -> Tensor:
    """Contiguous logp [N, C], as float16 holds them but none below `least`, their exponentials and 1 less those' sum.

    [N, 2C + 1].
    """
    rows, count = logp.shape
    native.require(logp, (rows, count))
    out = torch.empty(rows, 2 * count + 1)
    native.library().df_children(logp.data_ptr(), rows, count, least, out.data_ptr())
    return out


def reach(scores: Tensor, most: int) -> Tensor:
    """Summed exponentials of the best `most` of each row of contiguous scores [N, S], as float16 holds them, [N]."""
    rows, count = scores.shape
    native.require(scores, (rows, count))
    out, scratch = torch.empty(rows), torch.empty(count)
    given = scores.data_ptr(), rows, count, most, out.data_ptr(), 0, 0, 0, 0, scratch.data_ptr()
    native.library().df_worth(*given)
    return out


def worth(scores: Tensor, sizes: Tensor, prices: Tensor) -> Tensor:
    """For each row of contiguous scores [N, P] the size whose best nodes are expected to add most above its price, [N].

    sizes: [V] int64, rising, root included, 2 or more.  prices: [V] float64, in tokens.
    """
    rows, count = scores.shape
    native.require(scores, (rows, count))
    native.require(sizes, (len(sizes),), torch.long)
    native.require(prices, (len(sizes),), torch.double)
    out, scratch = torch.empty(rows, dtype=torch.long), torch.empty(count)
    addresses = sizes.data_ptr(), prices.data_ptr(), len(sizes), out.data_ptr(), scratch.data_ptr()
    native.library().df_worth(scores.data_ptr(), rows, count, 0, 0, *addresses)
    return out


class NativeCandidates:
    """The candidates of trees that are being drafted, level by level, and the beam of the newest level.

    Axes: B rows, K beam nodes, P candidates of all levels.
    """

    def __init__(self, batch: int, most: int, names: Tensor | None) -> None:
        """most: candidates of a row.  names: token of each logit, [W] int64; None: the same."""
        self.batch, self.most, self.names = batch, most, names
        self._tokens, self._parents = (torch.empty(batch, most, dtype=torch.long) for _ in range(2))
        self._scores = torch.empty(batch, most)
        self.size, self.ends = 0, []  # of every level in the pool
        self.beam: tuple[Tensor, Tensor] | None = None  # scores and places of its nodes, [B, K]

    @property
    def tokens(self) -> Tensor:
        """[B, P]."""
        return self._tokens[:, : self.size]

    @property
    def scores(self) -> Tensor:
        """Cumulative log-probabilities, [B, P]."""
        return self._scores[:, : self.size]

    @property
    def parents(self) -> Tensor:
        """Places of the parents, -1 for the root's children, [B, P]."""
        return self._parents[:, : self.size]

    def level(
        self, logits: Tensor, count: int, kept: int, growing: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add the best `count` children of each beam node; the best of them are the next beam, `kept` at most.

        logits: [B, K, W]; K is 1 for the root's.  growing: [B] bool, rows that have this level; the others'
        candidates score -inf.  Returns the next beam's tokens and origins in the one before, [B, K'], and the new
        candidates' scores, [B, n].
        """
        logits = logits.contiguous()
        batch, beam, width = logits.shape
        native.require(logits, (self.batch, beam, width))
        if self.names is not None:
            native.require(self.names, (width,), torch.long)
        if growing is not None:
            native.require(growing, (batch,), torch.bool)
        fresh, start = beam * count, self.size
        kept = min(kept, fresh)
        if not (0 < count <= width and kept > 0 and start + fresh <= self.most):
            raise ValueError(f"wanted 1 to {width} children and room for {fresh}, got {count}, {self.most - start}")
        if beam != (1 if self.beam is None else self.beam[0].shape[1]):
            raise ValueError(f"got logits of {beam} nodes, which are not the beam's")
        tokens, places, origin = (torch.empty(batch, kept, dtype=torch.long) for _ in range(3))
        scores = torch.empty(batch, kept)
        values, ids = torch.empty(batch * fresh), torch.empty(batch * fresh, dtype=torch.long)
        native.library().df_level(
            logits.data_ptr(),
            batch,
            beam,
            width,
            count,
            0 if self.beam is None else self.beam[0].data_ptr(),
            0 if self.beam is None else self.beam[1].data_ptr(),
            0 if self.names is None else self.names.data_ptr(),
            0 if growing is None else growing.data_ptr(),
            start,
            self.most,
            self._tokens.data_ptr(),
            self._scores.data_ptr(),
            self._parents.data_ptr(),
            kept,
            tokens.data_ptr(),
            scores.data_ptr(),
            places.data_ptr(),
            origin.data_ptr(),
            values.data_ptr(),
            ids.data_ptr(),
            torch.get_num_threads(),
        )
        self.beam, self.size = (scores, places), start + fresh
        self.ends.append(self.size)
        return tokens, origin, self._scores[:, start : self.size]

    def reads(self, before: Tensor, origin: Tensor) -> Tensor:
        """Which level slots a beam reads, see `reads`."""
        return reads(before, origin)

    def cut(self, root: Tensor, nodes: int, counts: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, parents and levels of the best `nodes` of every row, root included, [B, at most nodes].

        counts: [B], of rows that keep fewer; their trees are padded, and candidates that score -inf are never kept.
        """
        nodes, finite = max(1, min(nodes, self.size + 1)), counts is not None
        counts = torch.full((self.batch,), nodes) if counts is None else counts
        root = root.contiguous()
        native.require(root, (self.batch,), torch.long)
        native.require(counts, (self.batch,), torch.long)
        found = [torch.empty(self.batch, nodes, dtype=torch.long) for _ in range(3)]
        ends, place = torch.tensor(self.ends), torch.empty(self.size + 1, dtype=torch.long)
        failed = native.library().df_cut(
            root.data_ptr(),
            self._tokens.data_ptr(),
            self._scores.data_ptr(),
            self._parents.data_ptr(),
            self.batch,
            self.size,
            self.most,
            ends.data_ptr(),
            counts.data_ptr(),
            finite,
            nodes,
            *(part.data_ptr() for part in found),
            place.data_ptr(),
        )
        if failed:
            raise ValueError("a candidate is kept whose parent is not")
        return found[0], found[1], found[2]
