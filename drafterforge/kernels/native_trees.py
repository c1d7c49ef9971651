"""Trees with the kernels of native.c: drafted levels, cuts, masks, confirmed walks, decisions of schedulers.

All results are batch-invariant.
Axes: B rows, K beam nodes, P candidates of all levels, T tree nodes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drafterforge.kernels import native


def walk(tokens: Tensor, parents: Tensor, next_tokens: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Nodes of the walks that a target confirms, [B, levels], padded with the root, and their lengths [B].

    tokens, parents, next_tokens: [B, T] int64, contiguous; see `tree.accept.accepted_path`.
    """
    rows, nodes = tokens.shape
    for part in (tokens, parents, next_tokens):
        native.require(part, (rows, nodes), torch.long)
    path, lengths = torch.empty(rows, levels, dtype=torch.long), torch.empty(rows, dtype=torch.long)
    failed = native.library().df_walk(
        tokens.data_ptr(),
        parents.data_ptr(),
        next_tokens.data_ptr(),
        rows,
        nodes,
        levels,
        path.data_ptr(),
        lengths.data_ptr(),
    )
    if failed:
        raise ValueError(f"a tree has a node before its parent, or a walk of more than {levels} nodes")
    return path, lengths


def pack_walks(parents: Tensor, path: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
    """As `trees.pack_walks`, of contiguous int64."""
    (rows, nodes), levels = parents.shape, path.shape[1]
    for part, shape in ((parents, (rows, nodes)), (path, (rows, levels)), (lengths, (rows,)), (tokens, (rows, levels))):
        native.require(part, shape, torch.long)
    packed = torch.empty(rows, 2 + 2 * levels, dtype=torch.long)
    addresses = parents.data_ptr(), path.data_ptr(), lengths.data_ptr(), tokens.data_ptr()
    native.library().df_pack_walks(*addresses, rows, nodes, levels, packed.data_ptr())
    return packed


def reads(before: Tensor, origin: Tensor) -> Tensor:
    """Level slots that a beam reads, [B, K', L + K'] bool: those of its origins in `before` [B, K, L], and itself.

    origin: [B, K'] int64, indices in the beam before.
    """
    batch, earlier, slots = before.shape
    beam = origin.shape[1]
    native.require(before, (batch, earlier, slots), torch.bool)
    native.require(origin, (batch, beam), torch.long)
    out = torch.empty(batch, beam, slots + beam, dtype=torch.bool)
    arguments = before.data_ptr(), origin.data_ptr(), batch, earlier, beam, slots, out.data_ptr()
    if native.library().df_reads(*arguments):
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
    """Additive mask [B, K, base + L]: each row's first lengths [B] slots, and after `base` those of `reads`.

    reads: [B, K, L] bool, lengths: int64, both contiguous.
    """
    batch, beam, slots = reads.shape
    native.require(reads, (batch, beam, slots), torch.bool)
    native.require(lengths, (batch,), torch.long)
    out = torch.empty(batch, beam, base + slots)
    native.library().df_mask(reads.data_ptr(), lengths.data_ptr(), batch, beam, slots, base, out.data_ptr())
    return out


def children(logp: Tensor, least: float) -> Tensor:
    """Contiguous logp [N, C] rounded to float16 and at least `least`, their exponentials, and 1 less their sum.

    [N, 2C + 1].
    """
    rows, count = logp.shape
    native.require(logp, (rows, count))
    out = torch.empty(rows, 2 * count + 1)
    native.library().df_children(logp.data_ptr(), rows, count, least, out.data_ptr())
    return out


def reach(scores: Tensor, most: int) -> Tensor:
    """Sum of the exponentials of each row's best `most` contiguous scores [N, S], rounded to float16, [N]."""
    rows, count = scores.shape
    native.require(scores, (rows, count))
    out, scratch = torch.empty(rows), torch.empty(count)
    arguments = scores.data_ptr(), rows, count, most, out.data_ptr(), 0, 0, 0, 0, scratch.data_ptr()
    native.library().df_worth(*arguments)
    return out


def worth(scores: Tensor, sizes: Tensor, prices: Tensor) -> Tensor:
    """For each row of contiguous scores [N, P] the size with the most expected tokens less its price, [N].

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
    """The candidate pool of a draft, level by level, and the beam of its newest level.

    Axes: B rows, K beam nodes, P candidates of all levels.
    """

    def __init__(self, batch: int, most: int, names: Tensor | None) -> None:
        """most: candidates of a row.  names: token of each logit, [W] int64; None: the same."""
        self.batch, self.most, self.names = batch, most, names
        self._tokens, self._parents = (torch.empty(batch, most, dtype=torch.long) for _ in range(2))
        self._scores = torch.empty(batch, most)
        self.size, self.ends = 0, []  # end of every level in the pool
        self.beam: tuple[Tensor, Tensor] | None = None  # scores and pool indices of its nodes, [B, K]

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
        """Pool indices of the parents, -1 for the root's children, [B, P]."""
        return self._parents[:, : self.size]

    def level(
        self, logits: Tensor, count: int, beam_size: int, growing: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add the best `count` children of each beam node; the best `beam_size` of all are the next beam.

        logits: [B, K, W]; K is 1 for the root.  growing: [B] bool, rows that have this level; candidates of
        other rows score -inf.  Returns the next beam's tokens and origins in the one before, [B, K'], and the new
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
        beam_size = min(beam_size, fresh)
        if not (0 < count <= width and beam_size > 0 and start + fresh <= self.most):
            raise ValueError(f"wanted 1 to {width} children and room for {fresh}, got {count}, {self.most - start}")
        if beam != (1 if self.beam is None else self.beam[0].shape[1]):
            raise ValueError(f"got logits of {beam} nodes, which are not the beam's")
        tokens, indices, origin = (torch.empty(batch, beam_size, dtype=torch.long) for _ in range(3))
        scores = torch.empty(batch, beam_size)
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
            beam_size,
            tokens.data_ptr(),
            scores.data_ptr(),
            indices.data_ptr(),
            origin.data_ptr(),
            values.data_ptr(),
            ids.data_ptr(),
            torch.get_num_threads(),
        )
        self.beam, self.size = (scores, indices), start + fresh
        self.ends.append(self.size)
        return tokens, origin, self._scores[:, start : self.size]

    def to_fill(self, batch: int, width: int, depth: int, beam: int) -> tuple[int, int, int, int]:
        """Addresses of names, tokens, parents and scores, for C to fill an empty pool as `level` would.

        width: of the logits.  depth: levels.  beam: children of a node, and most nodes of a beam.
        """
        if self.names is not None:
            native.require(self.names, (width,), torch.long)
        needed = self._ends(depth, min(beam, width), beam)[-1]
        if self.size or batch != self.batch or beam < 1 or needed > self.most:
            raise ValueError(f"wanted an empty pool of {batch} rows, room for {needed}; got {self.batch}, {self.most}")
        parts = self._tokens, self._parents, self._scores
        return native.address(self.names), *(part.data_ptr() for part in parts)

    def fill(self, depth: int, children: int, beam: int) -> None:
        """Note that C has added so many levels; `level` cannot add others behind them."""
        self.ends = self._ends(depth, children, beam)
        self.size = self.ends[-1]

    @staticmethod
    def _ends(depth: int, children: int, beam: int) -> list[int]:
        """End of each of the first levels."""
        ends, nodes = [children], children
        for _ in range(depth - 1):
            ends.append(ends[-1] + nodes * children)
            nodes = min(beam, nodes * children)
        return ends

    def reads(self, before: Tensor, origin: Tensor) -> Tensor:
        """Level slots that a beam reads, see `reads`."""
        return reads(before, origin)

    def cut(self, root: Tensor, nodes: int, counts: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, parents and levels of the best `nodes` of every row, root included, [B, at most nodes].

        counts: nodes of each row, [B], if some have fewer; their trees are padded, and scores of -inf are left out.
        """
        nodes, finite = max(1, min(nodes, self.size + 1)), counts is not None
        counts = torch.full((self.batch,), nodes) if counts is None else counts
        root = root.contiguous()
        native.require(root, (self.batch,), torch.long)
        native.require(counts, (self.batch,), torch.long)
        parts = [torch.empty(self.batch, nodes, dtype=torch.long) for _ in range(3)]
        ends, scratch = torch.tensor(self.ends), torch.empty(self.size + 1, dtype=torch.long)
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
            *(part.data_ptr() for part in parts),
            scratch.data_ptr(),
        )
        if failed:
            raise ValueError("a candidate is kept whose parent is not")
        return parts[0], parts[1], parts[2]
