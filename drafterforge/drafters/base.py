"""What a kind of drafter is: how it is trained, opened, checked, run, put into a pool and exported.

A new kind is a `DrafterKind` and one line in `registry.py`; everything else asks the kind.
Axes: N drafters, B rows (sequences decoded together), H hidden of the target.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from drafterforge.artifacts.manifest import Manifest
from drafterforge.config.drafter import DrafterConfig
from drafterforge.config.trainer import TrainerConfig
from drafterforge.drafters.group import DrafterGroup, SoloGroup
from drafterforge.drafters.proposer import Proposer
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.kernels.linear import has_matrix_unit
from drafterforge.targets.load import Target
from drafterforge.tree.evidence import Evidence
from drafterforge.tree.expand import Growth
from drafterforge.tree.grow import Tree, TreeShape
from drafterforge.tree.merge import Others

if TYPE_CHECKING:
    from drafterforge.data.joined import JoinedAnswers

# draft(rows, growth, others) -> trees of a drafter below the roots of some rows
DraftRows = Callable[[Sequence[int], Growth, Others], Tree]


class Drafter:
    """A drafter that is ready to decode: weights or tables, without the state of any sequence."""

    kind: ClassVar[str]  # name of its `DrafterKind`


@dataclass(frozen=True)
class DrafterSource:
    """Where one drafter's files are."""

    name: str
    kind: str  # name of a `DrafterKind`
    folder: Path | None  # None: of a kind that needs no files
    base: Path | None = None  # folder of the drafter that this one adds to


class Distilled(Protocol):
    """The result of a distillation; see `training.best_checkpoint.BestCheckpoint`."""

    best_score: float
    best_step: int
    curve: list[dict[str, float]]

    def summary(self, chain: int) -> str:
        """The result in words; chain: how many tokens a validation drafts."""


class TrainedParent(NamedTuple):
    """A trained drafter that another begins with."""

    folder: Path
    manifest: Manifest


@dataclass(frozen=True)
class TrainingJob:
    """What `train-drafter` gives a kind to make a drafter of."""

    config: DrafterConfig
    trainer: TrainerConfig
    target: Target
    answers: JoinedAnswers
    domain: str  # of the drafter
    seed: int
    recorded: Mapping[str, Any]  # settings of answers, features and trainer that decide a distilled drafter
    alone: str = ""  # domain that answers are picked by; empty: all of them
    parent: TrainedParent | None = None  # the drafter that it starts from, or adds to
    origin: TrainedParent | None = None  # the expert whose training it goes on with, where `parent` is a generalist
    batches: Callable[[], Iterable[Any]] = tuple  # packed training answers with the target's features
    distil: Callable[[Any], Distilled] | None = None  # runs a lightning module to the end, with its best weights


@dataclass(frozen=True)
class TrainedDrafter:
    """A drafter that `train-drafter` made, before it is written."""

    save: Callable[[Path], None]  # writes its files into an existing folder
    summary: str  # what training came to, in words
    metrics: Mapping[str, Any] = field(default_factory=dict)
    curve: list[dict[str, float]] | None = None  # of a distillation


class DrafterKind(ABC):
    """One kind of drafter.  Methods take opened drafters of this kind, unless they say otherwise."""

    name: ClassVar[str]  # as manifests have it, and `drafter=`
    aliases: ClassVar[tuple[str, ...]] = ()  # names of older files
    config_class: ClassVar[type[DrafterConfig]] = DrafterConfig  # the keys of `drafter=` that it reads
    trained: ClassVar[bool] = True  # whether `train-drafter` makes it
    trained_on_features: ClassVar[bool] = True  # whether training reads the target's features
    scheduled: ClassVar[bool] = False  # whether a scheduler may choose its trees: levels are drafted one by one
    fixed_shapes: ClassVar[bool] = False  # whether `runtime.graphs` can run its cycles
    has_default_shape: ClassVar[bool] = False  # whether its trees in a pool are its own, not the engine's
    needs_files: ClassVar[bool] = True  # False: its name alone is a drafter
    exports: ClassVar[tuple[str, ...]] = ()  # formats of other programs that it can be written in

    # ------------------------------------------------------------------ training

    def recorded_settings(self, job: TrainingJob) -> dict[str, Any]:
        """What decides the drafter: one that was made with other settings is not taken for it."""
        return {
            "drafter": dataclasses.asdict(job.config),
            "domain": job.domain,
            "answers": job.answers.digest,
            "seed": job.seed,
        }

    def build(self, job: TrainingJob) -> Any:
        """An untrained drafter of the job's settings and target."""
        raise ConfigError(f"drafter.kind={self.name} is not trained; type drafter=eagle3")

    def train(self, job: TrainingJob) -> TrainedDrafter:
        """What `build` gives, trained."""
        raise ConfigError(f"drafter.kind={self.name} is not trained; type drafter=eagle3")

    # ------------------------------------------------------------------ opening

    @abstractmethod
    def load(self, source: DrafterSource, target: Target, shared: dict[Any, Any] | None = None) -> Drafter:
        """The drafter of a source, ready to decode; ArtifactError if it does not fit the target.

        shared: weights that drafters opened together have in common, empty at first; None: it is opened alone.
        """

    def base_of(self, folder: Path) -> Path | None:
        """The folder of the drafter that the one in `folder` adds to; None: it has weights of its own."""
        return None

    def adds(self, folder: Path) -> bool:
        """Whether the files in `folder` only add to another drafter."""
        return False

    def check(self, name: str, drafter: Drafter, target: Target) -> None:
        """Refuse a drafter of another target or vocabulary, with a DrafterforgeError."""
        return

    # ------------------------------------------------------------------ decoding

    def proposer(self, drafter: Drafter) -> Proposer | None:
        """The drafter at work, with no rows yet; None: it works as a pool of one."""
        return None

    def default_shape(self, device: torch.device, dtype: torch.dtype) -> TreeShape:
        """Trees that pay on a device, when none are asked for.

        EAGLE-3's 60/8/10 on a GPU; a CPU with AMX verifies 16 nodes in bfloat16 at 1.2 times one token; without it
        every row and every level costs: of seven shapes tried on held-out prompts, none was faster than 6/3/2, with the
        kernels of native.c or without.
        """
        if device.type == "cuda":
            return TreeShape(num_tokens=60, depth=8, top_k=10)
        if dtype == torch.bfloat16 and has_matrix_unit("cpu"):
            return TreeShape(num_tokens=16, depth=5, top_k=4)
        return TreeShape(num_tokens=6, depth=3, top_k=2)

    # ------------------------------------------------------------------ in a pool

    def pool_rank(self, folder: Path) -> int:
        """Drafters of lower rank come first in a pool that names none: the first is its generalist."""
        return int(self.adds(folder))

    def reader(self, drafter: Drafter) -> Drafter:
        """The drafter that reads the text: itself, or a hybrid's neural one."""
        return drafter

    def stack_key(self, drafter: Drafter) -> Hashable | None:
        """What must be equal for readers of this kind to read in one pass; None: it reads by itself."""
        return None

    def stack_order(self, drafters: Sequence[Drafter]) -> list[int]:
        """The order in which they stack."""
        return list(range(len(drafters)))

    def stack(self, drafters: Sequence[Drafter]) -> Any:
        """Weights of drafters with one key side by side, in `stack_order`; by default there is one."""
        (drafter,) = drafters
        return drafter

    def group(self, stack: Any) -> DrafterGroup:
        """What `stack` gave at work in a pool, with no rows yet; it also judges them."""
        return SoloGroup(self.proposer(stack))

    def index_key(self, drafter: Drafter) -> Hashable | None:
        """Drafters with one key share an index; None: it has none."""
        return None

    def index(self, drafter: Drafter) -> CandidateIndex:
        """What looks up further candidates for the drafter's trees."""
        raise NotImplementedError(f"a {self.name} drafter has no index")

    def draft_with_index(
        self, drafter: Drafter, evidence: Sequence[Evidence], root: Tensor, shape: TreeShape, draft: DraftRows
    ) -> Tree:
        """Trees below the roots [B] of the drafter and its index; evidence: of each row, from the index."""
        raise NotImplementedError(f"a {self.name} drafter has no index")

    # ------------------------------------------------------------------ exporting

    def export(self, source: DrafterSource, embedding: Tensor) -> Any:
        """The module that writers of `exports` take.  embedding: the target's [V, H]."""
        raise ArtifactError(f"{source.folder} is a {self.name} drafter, which no other program reads")


class CandidateIndex(SoloGroup):
    """Looks up candidates for trees of other drafters; judged by what it adds without any guess of theirs."""

    def evidence(self, rows: Sequence[int], depth: int) -> list[Evidence]:
        """What followed where the texts of some rows stood before, `depth` tokens at most."""
        raise NotImplementedError
