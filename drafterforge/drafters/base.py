"""The interface of a drafter kind: training, opening, checking, decoding, pooling and export.

A new kind is a `DrafterKind` that is registered, see docs/add-a-drafter.md; all other code goes through this interface.
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
from drafterforge.drafters.limits import DraftLimits
from drafterforge.drafters.proposer import Proposer
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.kernels.devices import on_gpu
from drafterforge.kernels.dispatch import multiplies_bfloat16
from drafterforge.kernels.linear import decodes_with_matrix_unit
from drafterforge.targets.load import Target
from drafterforge.tree.evidence import Evidence
from drafterforge.tree.expand import Growth
from drafterforge.tree.grow import Tree, TreeShape
from drafterforge.tree.merge import RetrievalEvidence
from drafterforge.tree.tries import MergeRule

if TYPE_CHECKING:
    from drafterforge.data.joined import JoinedAnswers
    from drafterforge.drafters.retrieval.memory import AnswerMemory

# draft(rows, growth, retrieval) -> trees of a drafter below the roots of some rows
DraftRows = Callable[[Sequence[int], Growth, RetrievalEvidence], Tree]


class Drafter:
    """A loaded drafter: weights or tables, without per-sequence state."""

    kind: ClassVar[str]  # name of its `DrafterKind`
    merges: ClassVar[bool] = False  # whether its trees take candidates of an index while they grow, as hybrids need


@dataclass(frozen=True)
class DrafterSource:
    """The files of one drafter."""

    name: str
    kind: str  # name of a `DrafterKind`
    folder: Path | None  # None: the kind needs no files
    base: Path | None = None  # folder of the generalist, if this is a LoRA expert


class DistillationResult(Protocol):
    """Scores of a finished distillation; the training room implements it."""

    best_score: float
    best_step: int
    curve: list[dict[str, float]]

    def summary(self, chain: int, num_prompts: int) -> str:
        """The result in words.  chain: tokens that a validation drafts, for each of `num_prompts` prompts."""


# fits several lightning modules side by side, each as if alone, and restores the best weights of each
DistilTogether = Callable[[Sequence[Any]], Sequence[DistillationResult]]


class TrainedParent(NamedTuple):
    """A trained drafter that training starts from."""

    folder: Path
    manifest: Manifest


@dataclass(frozen=True)
class TrainingJob:
    """Everything a kind needs to train a drafter."""

    config: DrafterConfig
    trainer: TrainerConfig
    target: Target
    answers: JoinedAnswers
    domain: str  # of the drafter
    seed: int
    input_settings: Mapping[str, Any]  # of answers, features and trainer, for `recorded_settings`
    answers_domain: str = ""  # train on answers of this domain only; empty: all
    parent: TrainedParent | None = None  # the drafter to start from, or the generalist of a LoRA expert
    origin: TrainedParent | None = None  # the LoRA expert to continue, if `parent` is its generalist
    batches: Callable[[], Iterable[Any]] = tuple  # packed training answers with the target's features
    distil: Callable[[Any], DistillationResult] | None = None  # fits a lightning module and restores its best weights


@dataclass(frozen=True)
class TrainedDrafter:
    """A trained drafter that is not saved yet."""

    save: Callable[[Path], None]  # writes its files into an existing folder
    summary: str  # of training, in words
    metrics: Mapping[str, Any] = field(default_factory=dict)
    curve: list[dict[str, float]] | None = None  # learning curve, if it was distilled


class DrafterKind(ABC):
    """One kind of drafter.  The drafters that its methods take are loaded and of this kind."""

    name: ClassVar[str]  # in manifests, and of `drafter=`
    aliases: ClassVar[tuple[str, ...]] = ()  # names in older files
    config_class: ClassVar[type[DrafterConfig]] = DrafterConfig  # keys of `drafter=`
    trained: ClassVar[bool] = True  # whether `train-drafter` can train it
    trained_on_features: ClassVar[bool] = True  # whether training reads the target's features
    scheduled: ClassVar[bool] = False  # whether a scheduler may choose its trees, which then grow level by level
    fixed_shapes: ClassVar[bool] = False  # whether its cycles can have fixed shapes, see `runtime.static_batch`
    reads_on_host: ClassVar[bool] = False  # whether it needs nothing of the target, and reads beside the device
    has_default_shape: ClassVar[bool] = False  # whether it uses its own default tree in a pool, not the engine's
    needs_files: ClassVar[bool] = True  # False: naming it is enough to open one
    exports: ClassVar[tuple[str, ...]] = ()  # formats of other programs that `export` supports

    # ------------------------------------------------------------------ training

    def recorded_settings(self, job: TrainingJob) -> dict[str, Any]:
        """The settings that identify the trained drafter; an existing one with the same settings is reused."""
        return {
            "drafter": dataclasses.asdict(job.config),
            "domain": job.domain,
            "answers": job.answers.digest,
            "seed": job.seed,
        }

    def build(self, job: TrainingJob) -> Any:
        """An untrained drafter for the job."""
        raise ConfigError(f"drafter.kind={self.name} is not trained; type drafter=eagle3")

    def train(self, job: TrainingJob) -> TrainedDrafter:
        """Build and train the drafter of the job."""
        raise ConfigError(f"drafter.kind={self.name} is not trained; type drafter=eagle3")

    def train_together(self, jobs: Sequence[TrainingJob], distil: DistilTogether) -> list[TrainedDrafter]:
        """Train the drafters of several jobs, of one base, from one stream of batches."""
        raise ConfigError(f"drafter.kind={self.name} trains one drafter a run; several are trained with drafter=lora")

    # ------------------------------------------------------------------ opening

    @abstractmethod
    def load(self, source: DrafterSource, target: Target, shared: dict[Any, Any] | None = None) -> Drafter:
        """Load a drafter for decoding; ArtifactError if it does not fit the target.

        shared: cache of weights that drafters loaded together share, initially empty; None: load it alone.
        """

    def parent_settings(self, folder: Path) -> dict[str, Any]:
        """Settings that a new drafter takes from the full drafter it starts from, in `folder`; none by default."""
        return {}

    def taps(self, folder: Path) -> tuple[int, ...] | None:
        """The target's layers whose inputs the drafter in `folder` reads; None if it reads none."""
        return None

    def base_of(self, folder: Path) -> Path | None:
        """The folder of the generalist that the adapter in `folder` needs; None: `folder` has full weights."""
        return None

    def is_adapter(self, folder: Path) -> bool:
        """Whether `folder` holds only additions to a generalist."""
        return False

    def check(self, name: str, drafter: Drafter, target: Target) -> None:
        """Raise DrafterforgeError if the drafter belongs to another target or vocabulary."""
        return

    # ------------------------------------------------------------------ decoding

    def proposer(self, drafter: Drafter) -> Proposer | None:
        """A proposer without rows; None: the drafter runs as a pool of one."""
        return None

    def default_shape(self, device: torch.device, dtype: torch.dtype) -> TreeShape:
        """The default tree on a device.

        GPU: EAGLE-3's 60/8/10.  CPU with AMX and bfloat16: verifying 16 nodes costs 1.3 times one token.  CPU with
        AVX512-BF16: it costs as little, but drafting costs more; 10/5/3 was the fastest of 14 shapes.  Other CPUs:
        each node and level costs; 6/3/2 was the fastest of seven shapes on held-out prompts.
        """
        if on_gpu(device):
            return TreeShape(num_tokens=60, depth=8, top_k=10)
        if dtype == torch.bfloat16 and decodes_with_matrix_unit():
            return TreeShape(num_tokens=16, depth=5, top_k=4)
        if dtype == torch.bfloat16 and multiplies_bfloat16():
            return TreeShape(num_tokens=10, depth=5, top_k=3)
        return TreeShape(num_tokens=6, depth=3, top_k=2)

    # ------------------------------------------------------------------ in a pool

    def pool_rank(self, folder: Path) -> int:
        """Sort key of drafters in a pool that names none; the first one is the pool's generalist."""
        return int(self.is_adapter(folder))

    def reader(self, drafter: Drafter) -> Drafter:
        """The drafter that reads committed tokens: itself, or a hybrid's neural one."""
        return drafter

    def stack_key(self, drafter: Drafter) -> Hashable | None:
        """Readers of this kind with equal keys read in one stacked pass; None: it reads alone."""
        return None

    def stack_order(self, drafters: Sequence[Drafter]) -> list[int]:
        """The order in which `stack` takes drafters."""
        return list(range(len(drafters)))

    def stack(self, drafters: Sequence[Drafter]) -> Any:
        """Stacked weights of drafters with equal keys, in `stack_order`; by default of exactly one."""
        (drafter,) = drafters
        return drafter

    def group(self, stack: Any) -> DrafterGroup:
        """The pool state, without rows, of the drafters that `stack` returned."""
        return SoloGroup(self.proposer(stack))

    def indexed_drafting(self, drafter: Drafter) -> IndexedDrafting | None:
        """How the drafter's trees take candidates from an index; None: it uses no index."""
        return None

    def with_memory(self, drafter: Drafter, memory: AnswerMemory, shared: dict[int, Drafter]) -> Drafter:
        """The drafter, looking up the answers of a memory too; by default the drafter unchanged, as it looks up none.

        shared: drafters with this memory, by the id of the ones without it; initially empty.
        """
        return drafter

    # ------------------------------------------------------------------ other programs

    def publishes(self, config: dict[str, Any]) -> bool:
        """Whether this is the `config.json` of a published drafter that `read_published` reads."""
        return False

    def read_published(
        self, config: dict[str, Any], tensors: dict[str, Tensor], target: Any, embedding: Tensor, source: str
    ) -> Any:
        """The module of a published drafter; ArtifactError if it does not fit the target.

        config, tensors: its files.  target: config of the target, whose embedding is [V, H].  source: for errors.
        """
        raise ArtifactError(f"{source} holds a {self.name} drafter, which is not imported")

    def export(self, source: DrafterSource, embedding: Tensor) -> Any:
        """The module that writers of `exports` take.  embedding: the target's [V, H]."""
        raise ArtifactError(f"{source.folder} is a {self.name} drafter, which no other program reads")


class CandidateIndex(SoloGroup):
    """Looks up candidates for the trees of other drafters; judged on its own proposals alone."""

    @abstractmethod
    def evidence(self, rows: Sequence[int], depth: int) -> list[Evidence]:
        """Earlier occurrences of the end of some rows' texts, with at most `depth` tokens after each."""


class IndexedDrafting(ABC):
    """Drafting of one drafter together with a `CandidateIndex`."""

    key: Hashable  # drafters with equal keys share an index

    @abstractmethod
    def index(self) -> CandidateIndex:
        """A new index without rows."""

    @abstractmethod
    def draft(
        self,
        evidence: Sequence[Evidence],
        root: Tensor,
        shape: TreeShape,
        draft: DraftRows,
        limits: DraftLimits | None = None,
    ) -> Tree:
        """Trees below the roots [B].

        evidence: of each row, from the index.  draft: drafts without the index.  limits: None: the drafter's own.
        """

    @abstractmethod
    def rule(self, evidence: Evidence, shape: TreeShape) -> MergeRule:
        """How a row's evidence and the drafter's distribution are weighed when the device merges them."""
