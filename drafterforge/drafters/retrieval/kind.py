"""The retrieval kind: drafts by suffix lookup; training builds a datastore of answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from drafterforge.config.drafter import RetrievalDrafterConfig
from drafterforge.drafters.base import Drafter, DrafterKind, DrafterSource, TrainedDrafter, TrainingJob
from drafterforge.drafters.retrieval.memory import AnswerMemory, RememberingDatastore
from drafterforge.drafters.retrieval.model import KIND, Datastore, Retrieval, RetrievalSpec
from drafterforge.drafters.retrieval.propose import RetrievalProposer
from drafterforge.kernels.devices import on_gpu
from drafterforge.kernels.linear import decodes_with_matrix_unit
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape

if TYPE_CHECKING:
    from drafterforge.data.joined import JoinedRows

LAST = 2  # rank of retrieval in a pool, after all neural drafters


class RetrievalKind(DrafterKind):
    """Suffix lookup in the text and, for a trained drafter, in a datastore of answers."""

    name = KIND
    config_class = RetrievalDrafterConfig
    trained_on_features = False
    fixed_shapes = True
    reads_on_host = True
    has_default_shape = True
    needs_files = False

    def recorded_settings(self, job: TrainingJob) -> dict[str, Any]:
        count = {"num_answers": job.trainer.num_answers} if job.trainer.num_answers else {}
        parent = {"parent": job.parent.manifest.digest} if job.parent else {}
        return {"drafter": {"kind": KIND}, "domain": job.domain, "answers": job.answers.digest, **parent, **count}

    def build(self, job: TrainingJob) -> Datastore:
        """The datastore of the parent's answers, if there is one, and of the training answers that it lacks."""
        texts = list(answer_texts(job.answers.rows("train", job.answers_domain), RetrievalSpec().max_ngram))
        if job.parent:
            earlier = Datastore.open(job.parent.folder).sequences()
            stored = {text.tobytes() for text in earlier}
            texts = [*earlier, *(text for text in texts if text.astype(np.int32).tobytes() not in stored)]
        return Datastore.build(texts)

    def train(self, job: TrainingJob) -> TrainedDrafter:
        """See `DrafterKind`; there is nothing to optimise."""
        store = self.build(job)
        metrics = {"sequences": store.num_sequences, "tokens": store.num_tokens}
        summary = f"a datastore of {metrics['sequences']} answers, {metrics['tokens']} tokens"
        return TrainedDrafter(store.save, summary, metrics)

    def load(self, source: DrafterSource, target: Target, shared: dict[Any, Any] | None = None) -> Retrieval:
        if source.folder is None:
            return Retrieval()
        return Retrieval(datastore=Datastore.open(source.folder, len(target.backbone.embedding)))

    def proposer(self, drafter: Retrieval) -> RetrievalProposer:
        return RetrievalProposer(drafter)

    def default_shape(self, device: torch.device, dtype: torch.dtype) -> TreeShape:
        """See `DrafterKind`; deep trees, as lookup levels cost almost nothing."""
        many = on_gpu(device) or (dtype == torch.bfloat16 and decodes_with_matrix_unit())
        return TreeShape(num_tokens=32 if many else 12, depth=10, top_k=4)

    def pool_rank(self, folder: Path) -> int:
        return LAST

    def with_memory(self, drafter: Retrieval, memory: AnswerMemory, shared: dict[int, Drafter]) -> Retrieval:
        if id(drafter) not in shared:
            shared[id(drafter)] = replace(drafter, datastore=RememberingDatastore(drafter.datastore, memory))
        return shared[id(drafter)]


def answer_texts(rows: JoinedRows, lead: int) -> Iterator[np.ndarray]:
    """Each answer with the `lead` tokens before it, the context that its first tokens are looked up by.

    The rest of a prompt is left out: the target does not emit it, and the current prompt is searched as context.
    """
    for index in range(len(rows)):
        yield from marked_texts(*rows.arrays(index), lead)


def marked_texts(ids: np.ndarray, mask: np.ndarray, lead: int) -> Iterator[np.ndarray]:
    """The marked parts of a text, each with the `lead` tokens before it."""
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    for start, end in edges.reshape(-1, 2):
        yield ids[max(0, start - lead) : end]
