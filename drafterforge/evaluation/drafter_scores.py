"""MAT of each drafter of a pool on the target's answers to prompts: the measured labels of a router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.json_input import parse_as, read_json
from drafterforge.artifacts.locate import find_artifact
from drafterforge.artifacts.manifest import Manifest, canonical_json
from drafterforge.assembly.pools import build_pool
from drafterforge.assembly.runs import RunsFolder, drafter_manifest
from drafterforge.config.commands import TrainPolicyConfig
from drafterforge.config.names import RETRIEVAL
from drafterforge.config.pool import PoolConfig
from drafterforge.config.progress import bar
from drafterforge.data.answering import DATE
from drafterforge.data.chat import prompt_ids
from drafterforge.data.prompts import Prompt
from drafterforge.errors import ConfigError
from drafterforge.replay.answer_recorder import STATIC, AnswerRecorder
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.schedulers.actions import describe
from drafterforge.targets.load import Target
from drafterforge.training.router_data import DrafterScores
from drafterforge.tree.grow import TreeShape

SHARD = 32  # prompts measured before their scores are saved
BATCH = 8  # answers decoded together


@dataclass(frozen=True)
class DrafterScorer:
    """Measures the MAT of each drafter of a pool alone."""

    target: Target
    pool: Pool
    shape: TreeShape
    max_new_tokens: int
    parents: Sequence[Manifest] = ()  # of the drafters

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the prompts that determines the scores."""
        return {
            "drafters": {name: describe(self.pool.shape_of(name, self.shape)) for name in self.pool.names},
            "parents": [parent.as_parent() for parent in self.parents],
            "max_new_tokens": self.max_new_tokens,
        }

    @property
    def digest(self) -> str:
        return sha256(canonical_json(self.settings)).hexdigest()

    def measure(self, prompts: Sequence[Prompt], folder: Path) -> DrafterScores:
        """MAT of each drafter alone on each prompt; shards of an interrupted run in `folder` are reused."""
        scores: dict[str, list[float]] = {}
        with bar("measuring drafters", len(prompts)) as progress:
            for start in range(0, len(prompts), SHARD):
                part, file = prompts[start : start + SHARD], folder / f"measured-{start // SHARD:05d}.json"
                if not file.exists():
                    save_json_atomic(file, dict(zip([prompt.id for prompt in part], self._mats(part), strict=True)))
                scores |= parse_as(dict[str, list[float]], read_json(file), str(file))
                progress.advance(len(part))
        return DrafterScores(self.pool.names, scores, self.parents)

    def _mats(self, prompts: Sequence[Prompt]) -> list[list[float]]:
        """MAT of each drafter on each prompt; 1 for an answer too short to draft."""
        ids = [prompt_ids(self.target.tokenizer, list(prompt.messages), date=DATE) for prompt in prompts]
        mats = [[1.0] * len(self.pool.names) for _ in prompts]
        readable = [index for index, tokens in enumerate(ids) if len(tokens) < self.target.max_positions]
        engine, recorder = Engine(self.target, max_batch=BATCH), AnswerRecorder(self.target, self.pool, self.shape)
        answers = engine.generate([ids[index] for index in readable], self.max_new_tokens)
        for index, answer in zip(readable, answers, strict=True):
            if len(answer.tokens) > 1:
                recorded = recorder.record(answer)[STATIC]
                mats[index] = [recorded.num_tokens / recorded.cycles(n) for n in range(len(recorded.names))]
        return mats


def scorer_of(cfg: TrainPolicyConfig, target: Target) -> DrafterScorer:
    """A scorer of the configured drafters, or of all drafters of the target, with the trees of the pool."""
    config = PoolConfig(drafters=cfg.router.drafters, selector="static")
    pool, shape = build_pool(config, cfg.runtime, RunsFolder(cfg.runs_dir, target))
    if len(pool.names) < 2:
        raise ConfigError(
            f"router.labels=measured needs at least two drafters, got {', '.join(pool.names)}; "
            "type router.drafters=[A,B], or leave it out for the whole pool"
        )
    trained = [name for name in pool.names if name != RETRIEVAL]
    folders = [find_artifact(cfg.runs_dir, target.name, "drafters", name) for name in trained]
    parents = [drafter_manifest(folder, target) for folder in folders]
    return DrafterScorer(target, pool, shape, cfg.router.max_new_tokens, parents)
