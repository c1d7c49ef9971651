"""Replays a log of requests as a server would meet them: with learning from its own traffic, and without.

Every request is decoded by several engines in turns; between requests the learner works, so what it takes is not in
the requests' seconds.  The answers, and so what is learned from them, follow from the log and the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from drafterforge.artifacts.learned import LearnedRecord, LearnedVersion
from drafterforge.assembly.build import auto_engine
from drafterforge.assembly.runs import RunsFolder
from drafterforge.config.evaluation import AUTOREGRESSIVE
from drafterforge.config.learn import LearnCommandConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.data.stream import StreamRecord
from drafterforge.errors import ConfigError
from drafterforge.evaluation.methods import Method, rotate
from drafterforge.evaluation.rows import build_row
from drafterforge.runtime.answer_log import AnswerLog
from drafterforge.runtime.batch import Generation, Row
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.row_outputs import RowOutputs
from drafterforge.server.learning import LearnedDrafters
from drafterforge.targets.load import Target
from drafterforge.training.traffic import TrafficLearner, Train

PLAIN, EXPERTS, LEARNING = "auto", "auto, learned experts", "auto, learned experts and memory"
ROUND = 16  # requests between two looks of the learner


@dataclass
class ReplayedTraffic:
    """The answers of every method to every request, and what was learned when."""

    answers: dict[str, list[Generation]]
    learned: list[tuple[int, LearnedVersion]] = field(default_factory=list)  # requests before it, and the version

    def mismatches(self, method: str, part: slice) -> int:
        """Answers of a method that differ from plain decoding."""
        pairs = zip(self.answers[method][part], self.answers[AUTOREGRESSIVE][part], strict=True)
        return sum(answer.tokens != reference.tokens for answer, reference in pairs)

    def rows(self, parts: dict[str, slice], dtype: str, numerics: str) -> list[dict[str, Any]]:
        """A row of the report for every method and part of the requests."""
        baseline = self.answers[AUTOREGRESSIVE]
        return [
            build_row(
                Method(name, None, "none" if name == AUTOREGRESSIVE else "auto"),
                answers[part],
                baseline[part],
                domain=title,
                mismatches=self.mismatches(name, part),
                dtype=dtype,
                numerics=numerics,
            )
            for title, part in parts.items()
            for name, answers in self.answers.items()
        ]

    @property
    def curves(self) -> dict[str, Any]:
        """Figures by request, and the versions with the number of requests before each."""
        by_method = {
            name: [[len(answer.tokens), len(answer.cycles), round(answer.time_s["total"], 6)] for answer in answers]
            for name, answers in self.answers.items()
        }
        learned = [{"requests": count, **asdict(version)} for count, version in self.learned]
        return {"per_request": by_method, "learned": learned}


class TrafficReplay:
    """The engines, the log of answers and the learner of a replay."""

    def __init__(self, cfg: LearnCommandConfig, target: Target, train: Train) -> None:
        if StreamRecord.read(cfg.traffic_dir) is not None or LearnedRecord.read(cfg.traffic_dir).versions:
            raise ConfigError(
                f"a replay begins without traffic, but {cfg.traffic_dir} holds some; type runs_dir=OTHER, or "
                "`drafterforge learn delete` and learn.folder=OTHER"
            )
        self.cfg, self.target = cfg, target
        runs = RunsFolder(cfg.runs_dir, target, quiet=True)
        self.engines = {AUTOREGRESSIVE: Engine(target)}
        for name in (PLAIN, EXPERTS, LEARNING):
            self.engines[name], _ = auto_engine(runs, RuntimeConfig(), max_batch=1)
        if not isinstance(self.engines[LEARNING].drafter, Pool):
            raise ConfigError(f"drafter=auto of {target.name} on this {target.device.type} is no pool that can learn")
        self.log = AnswerLog(cfg.learn, cfg.traffic_dir, target)
        if self.log.memory is not None:
            self.engines[LEARNING].use_memory(self.log.memory)
        self.drafters = [LearnedDrafters(self.engines[name], runs, cfg.traffic_dir) for name in (EXPERTS, LEARNING)]
        self.learner = TrafficLearner(cfg, target, train)

    def run(
        self,
        prompts: Sequence[list[int]],
        old_prompts: Sequence[list[int]] = (),
        advance: Callable[[], None] = lambda: None,
    ) -> ReplayedTraffic:
        """Decode the prompts in order, and learn on the way; then others, from which nothing is learned.

        advance: called after each of them.
        """
        traffic = ReplayedTraffic({name: [] for name in self.engines})
        for number, prompt in enumerate([*prompts, *old_prompts]):
            rows = {name: self._decode(name, prompt) for name in rotate(list(self.engines), number)}
            for name, row in rows.items():
                traffic.answers[name].append(row.answer)
            if number < len(prompts):
                self.log.add(rows[LEARNING], self.log.num_erasures)
            if number < len(prompts) and (number + 1) % ROUND == 0:
                self.log.writer.flush()
                if (version := self.learner.round()) is not None:
                    traffic.learned.append((number + 1, version))
                    for drafters in self.drafters:
                        drafters.poll(lambda change: change())
            advance()
        self.log.close()
        return traffic

    @torch.inference_mode()
    def _decode(self, name: str, prompt: list[int]) -> Row:
        engine = self.engines[name]
        tokens, rule = engine.read(prompt, self.cfg.max_new_tokens)
        batch = engine.open_batch()
        joining = batch.begin(tokens, rule, outputs=RowOutputs() if name == LEARNING else None)
        while not batch.advance(joining):
            pass
        while batch.rows:
            batch.cycle(engine.shape)
        return joining.row
