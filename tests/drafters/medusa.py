"""A neural drafter kind that the package does not have: Medusa-like heads; docs/add-a-drafter.md shows its parts."""

# --8<-- [start:config]
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from drafterforge.config.drafter import DrafterConfig
from drafterforge.config.fields import setting
from drafterforge.drafters.base import Drafter, DrafterKind, DrafterSource, TrainedDrafter, TrainingJob
from drafterforge.drafters.eagle3.train.loss import StepCounts
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.drafters.eagle3.train.ttt import PackedBatch, lay_out
from drafterforge.drafters.proposer import JudgedProposer
from drafterforge.errors import DrafterforgeError
from drafterforge.targets.load import Target
from drafterforge.tree.expand import expand
from drafterforge.tree.grow import Tree, TreeShape

FILE = "heads.safetensors"


@dataclass(frozen=True)
class MedusaConfig(DrafterConfig):
    """Heads for the next tokens."""

    kind: str = setting("medusa", "kind of drafter; set by drafter=")
    num_heads: int = setting(3, "tokens that are drafted, by a head each")


# --8<-- [end:config]
# --8<-- [start:module]
class MedusaHeads(nn.Module):
    """Head i predicts the token i + 1 positions after a root, from its embedding and the feature before it."""

    def __init__(self, num_heads: int, embedding: Tensor, head: Tensor) -> None:
        """embedding, head: the target's, [V, H]."""
        super().__init__()
        size, width = embedding.shape
        self.heads = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(num_heads))
        self.register_buffer("embedding", embedding, persistent=False)
        self.lm_head = nn.Linear(width, size, bias=False, device="meta")  # frozen
        self.lm_head.weight = nn.Parameter(head.detach(), requires_grad=False)
        self.token_ids = torch.arange(size, device=embedding.device)  # target ids that it can draft: all
        self.t2d = torch.ones(size, dtype=torch.bool, device=embedding.device)  # whether an id can be drafted

    def forward(self, features: Tensor, roots: Tensor) -> Tensor:
        """States [I, M, H] below roots [M] with features [M, 3H] of the positions before them."""
        x = torch.cat((features.to(self.embedding.dtype), F.embedding(roots, self.embedding)), dim=-1)
        return torch.stack([F.silu(head(x)) for head in self.heads])


class MedusaModule(DistillModule):
    """Lightning module: optimiser, logging and validation are inherited."""

    @property
    def depth(self) -> int:
        return len(self.drafter.heads)

    def forward(self, batch: PackedBatch) -> tuple[Tensor, StepCounts]:
        layout = lay_out(batch, self.depth)  # row m: the position before a root of an answer
        states = self.drafter(batch.features[layout.rows], batch.tokens[layout.rows + 1])
        loss, (counts,) = self.losses_of([self], states, batch, layout)
        return loss, counts


# --8<-- [end:module]
# --8<-- [start:proposer]
@dataclass(frozen=True, eq=False)
class Medusa(Drafter):
    """Trained heads."""

    kind = "medusa"

    heads: MedusaHeads

    def logits(self, features: Tensor, roots: Tensor) -> Tensor:
        """[M, I, V] below roots [M] with features [M, 3H]."""
        return self.heads.lm_head(self.heads(features, roots)).transpose(0, 1)


class MedusaProposer(JudgedProposer):
    """Drafts for all rows; its state is the newest token of each and the feature before it."""

    def __init__(self, drafter: Medusa) -> None:
        self.drafter, self.roots, self.features = drafter, [], []

    def admit(self, text: Tensor, features: Tensor) -> None:
        self.roots.append(text[-1])
        self.features.append(features[-1])

    def keep(self, rows: list[int]) -> None:
        self.roots, self.features = ([part[row] for row in rows] for part in (self.roots, self.features))

    def read(self, tokens: Tensor, features: Tensor, counts: Sequence[int]) -> None:
        self.roots = [row[count - 1] for row, count in zip(tokens, counts, strict=True)]
        self.features = [row[count - 1] for row, count in zip(features, counts, strict=True)]

    def read_with_guesses(self, tokens: Tensor, features: Tensor, counts: Sequence[int]) -> list[list[dict]]:
        guesses = []
        for root, feature, *row, count in zip(self.roots, self.features, tokens, features, counts, strict=True):
            roots = torch.cat((root[None], row[0][: count - 1]))  # the token before each committed one
            before = torch.cat((feature[None], row[1][: count - 1]))
            best = self.drafter.logits(before, roots)[:, 0].softmax(dim=-1).topk(8)
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            guesses.append([dict(zip(*pair, strict=True)) for pair in pairs])
        self.read(tokens, features, counts)
        return guesses

    def draft_trees(self, root: Tensor, shape: TreeShape) -> Tree:
        return self.draft_rows(range(len(self.roots)), root, shape)

    def draft_rows(self, rows: Sequence[int], root: Tensor, shape: TreeShape) -> Tree:
        logits = self.drafter.logits(torch.stack([self.features[row] for row in rows]), root)
        shape = TreeShape(shape.num_tokens, min(shape.depth, logits.shape[1]), shape.top_k)

        def step(level: int, tokens: Tensor, origin: Tensor, reads: Tensor) -> Tensor:
            return logits[:, level, None].expand(-1, tokens.shape[1], -1)  # the same children below every node

        return expand(root, logits[:, 0], shape, step)


# --8<-- [end:proposer]
# --8<-- [start:kind]
class MedusaKind(DrafterKind):
    """Everything that the package needs to know of Medusa-like heads."""

    name = "medusa"
    config_class = MedusaConfig

    def recorded_settings(self, job: TrainingJob) -> dict:
        return super().recorded_settings(job) | job.input_settings

    def build(self, job: TrainingJob) -> MedusaHeads:
        torch.manual_seed(job.seed)
        target = job.target
        heads = MedusaHeads(job.config.num_heads, target.backbone.embedding.float(), target.head_weight.float())
        return heads.to(target.device)

    def train(self, job: TrainingJob) -> TrainedDrafter:
        heads = self.build(job)
        result = job.distil(MedusaModule(heads, job.target.head_weight, job.trainer))
        tensors = {name: value for name, value in heads.state_dict().items() if name != "lm_head.weight"}
        summary = result.summary(job.config.num_heads, len(job.answers.rows("val", job.answers_domain)))
        metrics = {"val_accept_length": result.best_score}
        return TrainedDrafter(lambda folder: save_file(tensors, folder / FILE), summary, metrics, result.curve)

    def load(self, source: DrafterSource, target: Target, shared: dict | None = None) -> Medusa:
        tensors = load_file(source.folder / FILE)
        heads = MedusaHeads(len(tensors) // 2, target.backbone.embedding, target.head_weight)
        heads.load_state_dict(tensors | {"lm_head.weight": target.head_weight})
        return Medusa(heads.to(target.device, target.compute_dtype))

    def check(self, name: str, drafter: Medusa, target: Target) -> None:
        if drafter.heads.embedding.shape != target.backbone.embedding.shape:
            raise DrafterforgeError(f"{name!r} drafts for another target")

    def proposer(self, drafter: Medusa) -> MedusaProposer:
        return MedusaProposer(drafter)


# --8<-- [end:kind]
