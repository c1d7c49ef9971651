"""Replays a log of requests as a server would meet them: with learning from its own traffic, and without.

Every request is decoded by several engines in turns; between requests the learner works, so what it takes is not in
the requests' seconds.  The answers, and so what is learned from them, follow from the log and the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from statistics import fmean
from typing import Any

import torch

from drafterforge.artifacts.learned import LearnedRecord, LearnedVersion, learned_drafters
from drafterforge.assembly.build import auto_engine
from drafterforge.assembly.runs import RunsFolder
from drafterforge.config.evaluation import AUTOREGRESSIVE
from drafterforge.config.learn import LearnCommandConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.data.stream import StreamRecord
from drafterforge.drafters.retrieval.model import Retrieval, RetrievalSpec
from drafterforge.errors import ConfigError
from drafterforge.evaluation.lossless import Mismatch, PlainComparison
from drafterforge.evaluation.methods import Method, rotate
from drafterforge.evaluation.rows import build_row, tokens_per_s
from drafterforge.runtime.answer_log import AnswerLog
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.row_outputs import RowOutputs
from drafterforge.runtime.rows import Generation, Row
from drafterforge.server.learning import LearnedDrafters
from drafterforge.targets.load import Target, load_target
from drafterforge.training.traffic import TrafficLearner, Train

PLAIN, EXPERTS, MEMORY = "auto", "learned experts", "learned experts and memory"
ALONE = "auto without retrieval"
ROUND = 16  # requests between two looks of the learner
WINDOW = 50  # requests of a moving mean


@dataclass
class ReplayedTraffic:
    """The answers of every method to every request, and what was learned when, with one seed."""

    seed: int
    answers: dict[str, list[Generation]]
    mismatches: list[Mismatch] = field(default_factory=list)  # first differences from plain decoding
    learned: list[tuple[int, LearnedVersion]] = field(default_factory=list)  # requests before it, and the version


def replay_rows(
    replays: Sequence[ReplayedTraffic], parts: dict[str, Sequence[int]], dtype: str, numerics: str
) -> list[dict[str, Any]]:
    """A row of the report for every method and part of the requests, over all seeds.

    A request counts once, so that intervals and tests do not take seeds for further requests.
    parts: places of the requests in the log, by name.
    """
    rows = []
    for title, part in parts.items():
        baseline = _over_seeds(replays, AUTOREGRESSIVE, part)
        for name in replays[0].answers:
            answers = _over_seeds(replays, name, part)
            differing = {
                mismatch.prompt
                for traffic in replays
                for mismatch in traffic.mismatches
                if mismatch.method == name and not mismatch.rerun
            }
            rows.append(
                build_row(
                    Method(name, None, "none" if name == AUTOREGRESSIVE else "auto"),
                    answers,
                    baseline,
                    domain=title,
                    mismatches=len(differing.intersection(part)),
                    dtype=dtype,
                    numerics="fast" if name == AUTOREGRESSIVE else numerics,
                )
            )
    return rows


def replay_curves(replays: Sequence[ReplayedTraffic], num_requests: int) -> dict[str, Any]:
    """Figures by request, over all seeds; moving means; mismatches; the versions, with the requests before each.

    num_requests: of the log; the answers to other domains' prompts come after them.
    """
    names = list(replays[0].answers)
    all_requests = range(len(replays[0].answers[AUTOREGRESSIVE]))
    return {
        "per_request": {
            name: [
                [len(answer.tokens), len(answer.cycles), round(answer.time_s["total"], 6)]
                for answer in _over_seeds(replays, name, all_requests)
            ]
            for name in names
        },
        "mat_by_request": {
            name: moving_mat([traffic.answers[name][:num_requests] for traffic in replays])
            for name in names
            if name != AUTOREGRESSIVE
        },
        "mismatches": [
            {"seed": traffic.seed} | mismatch.as_dict() for traffic in replays for mismatch in traffic.mismatches
        ],
        "learned": [
            {"seed": traffic.seed, "requests": count, **asdict(version)}
            for traffic in replays
            for count, version in traffic.learned
        ],
    }


def gains_over_plain(replays: Sequence[ReplayedTraffic], part: Sequence[int]) -> dict[str, list[float]]:
    """Tokens per second over those of the same server without learning, of each seed, by what is learned."""
    _, plain, *learning = replays[0].answers
    return {
        name.removeprefix(f"{plain}, "): [
            tokens_per_s(_answers([traffic], name, part)) / tokens_per_s(_answers([traffic], plain, part))
            for traffic in replays
        ]
        for name in learning
    }


def moving_mat(answers: Sequence[Sequence[Generation]]) -> list[list[float]]:
    """[requests, mean, least, most] of the tokens a cycle in the last `WINDOW` requests, over the seeds' answers."""
    points = []
    for end in range(min(WINDOW, len(answers[0])), len(answers[0]) + 1):
        windows = [seed[max(end - WINDOW, 0) : end] for seed in answers]
        cycles = [[cycle.accept_length for answer in window for cycle in answer.cycles] for window in windows]
        mats = [sum(lengths) / max(len(lengths), 1) for lengths in cycles]
        points.append([end, round(fmean(mats), 4), round(min(mats), 4), round(max(mats), 4)])
    return points


def _over_seeds(replays: Sequence[ReplayedTraffic], name: str, part: Sequence[int]) -> list[Generation]:
    """The answers of all seeds to each request as one: tokens, cycles and seconds of all."""
    joined = []
    for number in part:
        answers = [traffic.answers[name][number] for traffic in replays]
        tokens = [token for answer in answers for token in answer.tokens]
        cycles = [cycle for answer in answers for cycle in answer.cycles]
        steps = dict.fromkeys(step for answer in answers for step in answer.time_s)
        times = {step: sum(answer.time_s.get(step, 0.0) for answer in answers) for step in steps}
        joined.append(Generation(answers[0].prompt, tokens, cycles=cycles, time_s=times))
    return joined


def _answers(replays: Sequence[ReplayedTraffic], name: str, part: Sequence[int]) -> list[Generation]:
    return [traffic.answers[name][number] for traffic in replays for number in part]


def require_no_traffic(cfg: LearnCommandConfig) -> None:
    """ConfigError if answers were recorded, or experts learned, before: a replay learns from its log alone."""
    if StreamRecord.read(cfg.traffic_dir) is not None or LearnedRecord.read(cfg.traffic_dir).versions:
        raise ConfigError(
            f"a replay begins without traffic, but {cfg.traffic_dir} holds some; type runs_dir=OTHER, or "
            "`drafterforge learn delete` and learn.folder=OTHER"
        )
    if learned := sorted(learned_drafters(cfg.runs_dir, cfg.target.folder_name)):
        raise ConfigError(
            f"a replay begins without learned experts, but {', '.join(learned)} would draft; type `drafterforge learn "
            "delete` with learn.folder= as they were learned with, or runs_dir=OTHER"
        )


def draft_alone(pool: Pool) -> None:
    """Leave retrieval out of the trees of hybrids: nothing that it looks up matches."""
    spec = RetrievalSpec()
    retrieval = Retrieval(replace(spec, min_ngram=spec.max_ngram + 1))
    for name, drafter in pool.drafters.items():
        pool.replace(name, replace(drafter, retrieval=retrieval))


class TrafficReplay:
    """The engines, the log of answers and the learner of a replay."""

    def __init__(self, cfg: LearnCommandConfig, target: Target, train: Train) -> None:
        self.cfg, self.target = cfg, target
        plain = PLAIN if cfg.retrieval else ALONE
        learning = [f"{plain}, {part}" for part in ((EXPERTS, MEMORY) if cfg.retrieval else (EXPERTS,))]
        self.engines = {AUTOREGRESSIVE: Engine(target, numerics="fast")}
        self.engines |= {name: self._auto_engine(target) for name in (plain, *learning)}
        self.settled = PlainComparison(target, self.engines[plain].numerics, cfg.max_new_tokens)
        self.recorded = learning[-1]  # the engine whose answers are learned from
        self.log = AnswerLog(cfg.learn, cfg.traffic_dir, target)
        if self.log.memory is not None and cfg.retrieval:
            self.engines[self.recorded].use_memory(self.log.memory)
        self.drafters = {name: self._learned_drafters(self.engines[name]) for name in learning}
        self.learner = TrafficLearner(cfg, target, train)

    def _auto_engine(self, target: Target) -> Engine:
        """The engine of `drafter=auto` on a copy of the target, without learned experts."""
        engine, _ = auto_engine(RunsFolder(self.cfg.runs_dir, target, quiet=True), RuntimeConfig(), max_batch=1)
        if not isinstance(engine.drafter, Pool):
            raise ConfigError(f"drafter=auto of {target.name} on this {target.device.type} is no pool that can learn")
        if not self.cfg.retrieval:
            draft_alone(engine.drafter)
        return engine

    def _learned_drafters(self, engine: Engine) -> LearnedDrafters:
        runs = RunsFolder(self.cfg.runs_dir, engine.target, quiet=True)
        return LearnedDrafters(engine, runs, self.cfg.traffic_dir)

    @cached_property
    def float64_target(self) -> Target:
        return load_target(replace(self.cfg.target, dtype="float64"))

    def float64_engines(self, name: str) -> tuple[Engine, Engine]:
        """A method's engine, with the experts that have joined, and plain decoding, in float64."""
        engine = self._auto_engine(self.float64_target)
        if name in self.drafters:
            self._learned_drafters(engine).poll(lambda change: change())
        return engine, Engine(self.float64_target)

    def run(
        self,
        prompts: Sequence[list[int]],
        old_prompts: Sequence[list[int]] = (),
        advance: Callable[[], None] = lambda: None,
    ) -> ReplayedTraffic:
        """Decode the prompts in order, and learn on the way; then others, from which nothing is learned.

        advance: called after each of them.
        """
        traffic = ReplayedTraffic(self.cfg.seed, {name: [] for name in self.engines})
        for number, prompt in enumerate([*prompts, *old_prompts]):
            rows = {name: self._decode(name, prompt) for name in rotate(list(self.engines), number)}
            for name, row in rows.items():
                traffic.answers[name].append(row.answer)
                exact, pair = partial(self.float64_engines, name), ([row.answer], [rows[AUTOREGRESSIVE].answer])
                mismatches = self.settled.mismatches(name, *pair, exact)
                traffic.mismatches += [replace(mismatch, prompt=number) for mismatch in mismatches]
            if number < len(prompts):
                self.log.add(rows[self.recorded], self.log.num_erasures)
            if number < len(prompts) and (number + 1) % ROUND == 0:
                self.log.writer.flush()
                if (version := self.learner.round()) is not None:
                    traffic.learned.append((number + 1, version))
                    for drafters in self.drafters.values():
                        drafters.poll(lambda change: change())
            advance()
        self.log.close()
        versions = {version.name: version for version in LearnedRecord.read(self.cfg.traffic_dir).versions}
        traffic.learned = [(number, versions.get(version.name, version)) for number, version in traffic.learned]
        return traffic

    @torch.inference_mode()
    def _decode(self, name: str, prompt: list[int]) -> Row:
        engine = self.engines[name]
        tokens, rule = engine.read(prompt, self.cfg.max_new_tokens)
        batch = engine.open_batch()
        joining = batch.begin(tokens, rule, outputs=RowOutputs() if name == self.recorded else None)
        while not batch.advance(joining):
            pass
        while batch.rows:
            batch.cycle(engine.shape)
        return joining.row
