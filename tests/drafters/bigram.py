"""A drafter kind that the package does not have: a bigram table; docs/add-a-drafter.md shows its parts."""

# --8<-- [start:config]
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drafterforge.config.drafter import DrafterConfig
from drafterforge.config.fields import setting
from drafterforge.drafters.base import Drafter, DrafterKind, DrafterSource, TrainedDrafter, TrainingJob
from drafterforge.drafters.proposer import JudgedProposer
from drafterforge.errors import DrafterforgeError
from drafterforge.targets.load import Target
from drafterforge.tree.branch import expand_with_proposals
from drafterforge.tree.expand import expand
from drafterforge.tree.grow import Tree, TreeShape

FILE = "bigrams.safetensors"


@dataclass(frozen=True)
class BigramConfig(DrafterConfig):
    """Bigrams of the domain's answers."""

    kind: str = setting("bigram", "kind of drafter; set by drafter=")
    smoothing: float = setting(0.1, "what a pair that was never seen counts")


# --8<-- [end:config]
# --8<-- [start:drafter]
@dataclass(frozen=True, eq=False)
class Bigrams(Drafter):
    """Log-probabilities of every token after every token, [V, V]."""

    kind = "bigram"

    table: Tensor


# --8<-- [end:drafter]
# --8<-- [start:proposer]
class BigramProposer(JudgedProposer):
    """Drafts for all rows; its state is the last committed token of each."""

    reads_features = False

    def __init__(self, drafter: Bigrams) -> None:
        self.table, self.newest = drafter.table, []

    def admit(self, text: Tensor, features: Tensor) -> None:
        self.newest.append(int(text[-1]))

    def keep(self, rows: list[int]) -> None:
        self.newest = [self.newest[row] for row in rows]

    def read(self, tokens: Tensor, features: Tensor, counts: Sequence[int]) -> None:
        self.newest = [int(row[count - 1]) for row, count in zip(tokens, counts, strict=True)]

    def read_with_guesses(self, tokens: Tensor, features: Tensor, counts: Sequence[int]) -> list[list[dict]]:
        guesses = []
        for newest, row, count in zip(self.newest, tokens.tolist(), counts, strict=True):
            best = [self.table[token].exp().topk(8) for token in [newest, *row[: count - 1]]]
            guesses.append([dict(zip(top.indices.tolist(), top.values.tolist(), strict=True)) for top in best])
        self.read(tokens, features, counts)
        return guesses

    def draft_trees(self, root: Tensor, shape: TreeShape) -> Tree:
        return self.draft_rows(range(len(self.newest)), root, shape)

    def draft_rows(self, rows: Sequence[int], root: Tensor, shape: TreeShape) -> Tree:
        return expand(root, self.table[root], shape, self._step)

    def draft_with_proposals(self, rows: Sequence[int], root: Tensor, shape: TreeShape) -> Tree:
        return expand_with_proposals(root, self.table[root], shape, self._step)

    def _step(self, level: int, tokens: Tensor, origin: Tensor, reads: Tensor) -> Tensor:
        return self.table[tokens]


# --8<-- [end:proposer]
# --8<-- [start:kind]
class BigramKind(DrafterKind):
    """Everything that the package needs to know of bigrams."""

    name = "bigram"
    config_class = BigramConfig
    trained_on_features = False

    def build(self, job: TrainingJob) -> Tensor:
        size = job.target.config.vocab_size
        return torch.full((size, size), job.config.smoothing)

    def train(self, job: TrainingJob) -> TrainedDrafter:
        counts, pairs, rows = self.build(job), 0, job.answers.rows("train", job.answers_domain)
        for index in range(len(rows)):
            tokens = torch.tensor(rows.arrays(index)[0]).long()
            counts.index_put_((tokens[:-1], tokens[1:]), torch.tensor(1.0), accumulate=True)
            pairs += len(tokens) - 1
        table = counts.log_softmax(dim=1) if pairs == 0 else (counts / counts.sum(dim=1, keepdim=True)).log()
        return TrainedDrafter(
            lambda folder: save_file({"table": table}, folder / FILE), f"{pairs} pairs", {"pairs": pairs}
        )

    def load(self, source: DrafterSource, target: Target, shared: dict | None = None) -> Bigrams:
        return Bigrams(load_file(source.folder / FILE)["table"].to(target.device))

    def check(self, name: str, drafter: Bigrams, target: Target) -> None:
        if len(drafter.table) != target.config.vocab_size:
            raise DrafterforgeError(f"{name!r} has {len(drafter.table)} token ids")

    def proposer(self, drafter: Bigrams) -> BigramProposer:
        return BigramProposer(drafter)


# --8<-- [end:kind]
