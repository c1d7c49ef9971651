"""Learns LoRA experts from a server's recorded traffic: tests on the newest requests, trains on those before.

A round trains one expert of one kind of traffic and compares it, request by request, with all other drafters on
requests that it was not trained on.  It joins if the 95 % interval of its gain lies above 0.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from drafterforge.artifacts.atomic import save_json_atomic, write_bytes_atomic
from drafterforge.artifacts.learned import (
    JOINED,
    LEFT,
    REJECTED,
    TEXTS,
    LearnedRecord,
    LearnedVersion,
    add_traffic_folder,
    delete_learned,
    update_record,
)
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.run import artifact_run
from drafterforge.assembly.build import advisor
from drafterforge.assembly.defaults import default_drafters
from drafterforge.assembly.runs import RunsFolder
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.config.drafter import AUTO, Eagle3DrafterConfig
from drafterforge.config.learn import LearnCommandConfig
from drafterforge.config.names import domain_of
from drafterforge.config.trainer import TrainerConfig
from drafterforge.data.answers import SPLITS, Answer, AnswerRows, AnswerSet, answer_stats, encode_shard
from drafterforge.data.joined import JoinedAnswers
from drafterforge.data.served import ServedCaptures, served_shards
from drafterforge.data.stream import StreamRecord
from drafterforge.data.turns import conversations
from drafterforge.drafters.eagle3.kind import Eagle3Kind
from drafterforge.drafters.registry import kind_named
from drafterforge.errors import ConfigError, DrafterforgeError
from drafterforge.router.traffic import UNKNOWN, traffic_kind
from drafterforge.targets.capture import FeatureCapture
from drafterforge.targets.load import Target
from drafterforge.training.initialisation import generalist_for
from drafterforge.training.traffic_gate import Verdict, judge_drafter

log = logging.getLogger(__name__)
ROUND = 16  # answers between two looks, at least, where a kind has too few distinct prompts
PASSES = 10  # over the answers that an expert is trained on, at most: more of few answers make it worse
VALIDATIONS = 8  # of a training
SPARE = 16  # times the tokens that a training reads, of which the newest answers are looked at
Train = Callable[[TrainDrafterConfig, Target, JoinedAnswers, Sequence[Callback]], Path]


class OutdatedRoundError(DrafterforgeError):
    """A round of learning that must not add its expert any more."""


class Pace(Callback):
    """Pauses between batches, so that training uses a share of the cores' time."""

    def __init__(self, share: float, check: Callable[[], None] = lambda: None) -> None:
        """check: called after every batch; may raise."""
        self.share, self.check, self.resumed = share, check, time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *args: Any, **kwargs: Any) -> None:
        """Sleep for as long as the share demands."""
        self.check()
        worked = time.monotonic() - self.resumed
        time.sleep(worked * (1.0 / self.share - 1.0))
        self.resumed = time.monotonic()


def spare_the_machine(share: float) -> float:
    """Yield to all other processes, and use few threads; returns the share of the time that these may work."""
    os.nice(19)
    with suppress(AttributeError, OSError):  # Linux alone has it, and a container may refuse it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max(1, int(share * cores))
    torch.set_num_threads(threads)
    return min(1.0, share * cores / threads)


def split_newest(
    rows: Sequence[Answer], newest: str, num_test: int, num_val: int, most_tokens: int
) -> dict[str, list[Answer]]:
    """The newest prompts of `num_test` conversations, of the `num_val` before them, and those of the rest.

    Each prompt has its newest answer.  The turns of a conversation are prompts of one split, and only the newest of
    them is in `test` or `val`.
    newest: id of the newest answer of the last round.  No conversation with a prompt up to it is in `test` or `val`:
    an expert continues those of earlier rounds, which were trained on it.
    most_tokens: of the rest; older ones are left out.
    """
    begun = conversations((row.input_ids, row.prompt_tokens) for row in rows)
    fresh, prompts = {prompt_of(row): row for row in new_prompts(rows, newest)}, new_prompts(rows)
    earlier = {begun[prompt_of(row)] for row in prompts if prompt_of(row) not in fresh}
    held_out: dict[tuple[int, ...], Answer] = {}
    for prompt, row in fresh.items():
        if begun[prompt] not in earlier and len(held_out) < num_test + num_val:
            held_out.setdefault(begun[prompt], row)
    train, tokens = list[Answer](), 0
    for row in prompts:
        if begun[prompt_of(row)] not in held_out and tokens < most_tokens:
            train.append(row)
            tokens += len(row.input_ids)
    newest_rows = [*held_out.values()]
    return {"test": newest_rows[:num_test], "val": newest_rows[num_test:], "train": train}


def new_prompts(rows: Sequence[Answer], newest: str = "") -> list[Answer]:
    """The newest answer to each prompt that no answer up to the one with this id has, the newest prompts first.

    If no answer has this id, its shard has left, and with it all older ones.
    """
    ids = [row.id for row in rows]
    start = ids.index(newest) + 1 if newest in ids else 0
    earlier = {prompt_of(row) for row in rows[:start]}
    latest = {prompt_of(row): row for row in rows[start:]}  # in the order in which the prompts came first
    return [row for prompt, row in reversed(latest.items()) if prompt not in earlier]


def prompt_of(row: Answer) -> tuple[int, ...]:
    """Token ids of an answer's prompt."""
    return tuple(row.input_ids[: row.prompt_tokens])


class TrafficLearner:
    """Learns from the traffic in a folder, round by round."""

    def __init__(self, cfg: LearnCommandConfig, target: Target, train: Train, pace: float = 1.0) -> None:
        """train: makes the drafter of a configuration.  pace: share of the time that training works."""
        self.cfg, self.target, self.train, self.pace = cfg, target, train, pace
        self.folder = cfg.traffic_dir
        self.runs = RunsFolder(cfg.runs_dir, target, quiet=True)
        self.router = advisor(self.runs, [domain_of(name) for name in default_drafters(self.runs)])
        self.kinds: dict[str, str] = {}  # id of each recorded answer -> its kind of traffic, oldest first
        self.least_answers = 0  # recorded in all, before which no kind has enough new ones
        add_traffic_folder(cfg.runs_dir, target.name, self.folder)
        self.delete_unfinished()
        self.delete_unrecorded(LearnedRecord.read(self.folder))

    def round(self) -> LearnedVersion | None:
        """Train and judge an expert of the kind of traffic with most new prompts; None if there are too few.

        If that fails, the next kind is tried.
        """
        record, num_answers = LearnedRecord.read(self.folder), StreamRecord.read(self.folder).answers
        if record.frozen or num_answers < self.least_answers:
            return None
        by_kind, held_out, errors = self.answers(), self.cfg.learn.held_out, list[DrafterforgeError]()
        used = {kind: self.newest_used(rows, record.newest.get(kind, "")) for kind, rows in by_kind.items()}
        fresh = {kind: len(new_prompts(rows, used[kind])) for kind, rows in by_kind.items()}
        if fresh != record.fresh:
            update_record(self.folder, partial(with_fresh, record, fresh))
        for kind in sorted(fresh, key=lambda name: -fresh[name]):
            splits = split_newest(by_kind[kind], used[kind], held_out, held_out // 2, self.most_tokens)
            is_enough = len(splits["train"]) >= held_out and len(splits["val"]) == held_out // 2
            if fresh[kind] < self.cfg.learn.min_answers or not is_enough:
                continue
            try:
                return self.learn(kind, splits, by_kind[kind][-1].id, record)
            except DrafterforgeError as error:
                log.warning("no expert of %s was learned: %s", kind, error)
                errors.append(error)
        if errors:
            raise errors[0]
        missing = self.cfg.learn.min_answers - max(fresh.values(), default=0)
        self.least_answers = num_answers + max(missing, ROUND)
        return None

    def newest_used(self, rows: Sequence[Answer], newest: str) -> str:
        """Id of the newest of a kind's rows that is not newer than an answer; empty if there is none.

        The answer itself may be of another kind now, because the router has changed.
        newest: id of the answer.
        """
        order = {name: number for number, name in enumerate(self.kinds)}
        return next((row.id for row in reversed(rows) if order[row.id] <= order.get(newest, -1)), "")

    def learn(
        self, kind: str, splits: dict[str, list[Answer]], newest: str, record: LearnedRecord
    ) -> LearnedVersion | None:
        """Train and judge an expert, and add it to the record; None if the round became outdated meanwhile.

        newest: id of the kind's newest answer.
        """
        stream, number, incumbent = (
            StreamRecord.read(self.folder),
            record.num_versions + 1,
            record.drafters.get(kind, ""),
        )
        name = name_of(kind, stream.id, number)

        def add(current: LearnedRecord) -> LearnedRecord:
            require_current(current, record, kind)
            if verdict.incumbent_leaves:
                current = current.with_state(incumbent, LEFT)
            versions, fresh = [*current.versions, version], current.fresh | {kind: 0}
            current = replace(current, versions=versions, num_versions=number, training="", fresh=fresh)
            return self.bounded(replace(current, newest=current.newest | {kind: newest}))

        try:
            update_record(self.folder, lambda current: replace(require_current(current, record, kind), training=name))
            answers = JoinedAnswers([self.write_answers(name, kind, splits)])
            pace = Pace(self.pace, lambda: require_current(LearnedRecord.read(self.folder), record, kind))
            tokens = sum(len(row.input_ids) for row in splits["train"])
            self.train(self.training_config(name, kind, record, tokens), self.target, answers, [pace])
            verdict = self.judge(name, splits["test"], incumbent)
            delete_learned(self.cfg.runs_dir, self.target.name, [name], TEXTS)  # which must not outlive the ring
            version = LearnedVersion(
                name=name,
                kind=kind,
                state=JOINED if verdict.gain.low > 0.0 else REJECTED,
                rival=verdict.gain.rival,
                gain=verdict.gain.mean,
                low=verdict.gain.low,
                high=verdict.gain.high,
                num_train=len(splits["train"]),
                num_judged=len(splits["test"]),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                replaces="" if verdict.incumbent_leaves else incumbent,
                base_gain=verdict.base_gain,
                first=verdict.first,
                first_gain=verdict.first_gain,
            )
            current = update_record(self.folder, add)
        except DrafterforgeError:
            if is_outdated(record, LearnedRecord.read(self.folder), kind):
                return None
            raise
        finally:
            self.delete_unfinished()
        self.delete_unrecorded(current)
        update_record(self.folder, LearnedRecord.shortened)  # of versions whose files are gone
        return current.versions[-1]

    def answers(self) -> dict[str, list[Answer]]:
        """The recorded answers by kind of traffic, oldest first."""
        captures, by_kind = ServedCaptures(self.folder, FeatureCapture(self.target)), dict[str, list[Answer]]()
        kinds = dict[str, str]()
        shards, tokens = list[AnswerRows](), 0
        for _, rows in reversed([*served_shards(self.folder)]):
            shards, tokens = [rows, *shards], tokens + int(rows.lengths.sum())
            if tokens >= SPARE * self.most_tokens:  # without features, a ring holds a hundred times as much
                break
        for rows in shards:
            for row in rows:
                if row.answer_tokens < 2:
                    continue
                kind = kinds[row.id] = self.kinds.get(row.id) or self.kind_of(row, captures)
                by_kind.setdefault(kind, []).append(replace(row, domain=kind))
        self.kinds = kinds
        return by_kind

    def kind_of(self, row: Answer, captures: ServedCaptures) -> str:
        """The kind of traffic of an answer."""
        if self.router is None or self.router.kind != "target":  # whose features need not be computed
            return UNKNOWN
        return traffic_kind(self.router, captures.prompt_features(row).float())

    @property
    def most_tokens(self) -> int:
        """Tokens that a training reads."""
        return self.cfg.learn.steps * TrainerConfig().tokens_per_batch

    def write_answers(self, name: str, kind: str, splits: dict[str, list[Answer]]) -> AnswerSet:
        """The `answers` artifact that the expert is trained on."""
        config = {"domain": {"name": kind}, "traffic": {split: [row.id for row in splits[split]] for split in SPLITS}}
        path = artifact_dir(self.cfg.runs_dir, self.target.name, "answers", name)
        run = artifact_run(path, "answers", self.target, config, overwrite=True)
        metrics: dict[str, Any] = {}
        with run.write(metrics) as folder:
            files = [folder / f"{split}-00000.arrow" for split in SPLITS]
            for split, file in zip(SPLITS, files, strict=True):
                rows = [replace(row, split=split) for row in splits[split]]
                write_bytes_atomic(file, encode_shard(list(enumerate(rows))))
            answer_figures = answer_stats(files)
            save_json_atomic(folder / "stats.json", answer_figures)
            metrics |= answer_figures
        return AnswerSet.open(path, self.target.fingerprint, verify=False)

    def training_config(self, name: str, kind: str, record: LearnedRecord, tokens: int) -> TrainDrafterConfig:
        """Settings of a LoRA expert that continues the kind's newest one, else the label's expert or the generalist.

        tokens: to train on.
        """
        learn, names = self.cfg.learn, self.runs.names()
        steps = min(learn.steps, math.ceil(PASSES * tokens / TrainerConfig().tokens_per_batch))
        base = TrainDrafterConfig(
            target=self.cfg.target,
            domain=DomainConfig(name=kind, grammar=False),
            data=DataConfig(source="recorded", path=str(self.folder), answers="given"),
            name=name,
            runs_dir=self.cfg.runs_dir,
            seed=self.cfg.seed,
            overwrite=True,
            answers=[name],
            drafter=Eagle3DrafterConfig(init=AUTO),
            trainer=TrainerConfig(
                ttt_steps=2,
                val_ttt_steps=4,
                max_steps=steps,
                lr=4e-3,
                val_every=max(steps // VALIDATIONS, 1),
                checkpoint_steps=False,
                loss_chunk=256,
                loggers=["csv"],
            ),
        )
        generalist = generalist_for(base, self.target)
        if not generalist:
            raise ConfigError(
                f"learning from traffic adds to a trained generalist, and {self.target.name} has none in "
                f"{self.cfg.runs_dir}; type `drafterforge train-drafter domain=general`, or learn.train=false"
            )
        init = record.drafters.get(kind, kind if kind in names and is_adapter(self.runs, kind) else generalist)
        return replace(base, drafter=Eagle3DrafterConfig(init=init, tuning="lora"))

    def judge(self, name: str, rows: Sequence[Answer], incumbent: str) -> Verdict:
        """See `judge_drafter`."""
        learned = {version.name for version in LearnedRecord.read(self.folder).versions}
        return judge_drafter(self.runs, name, rows, incumbent, learned)

    def bounded(self, record: LearnedRecord) -> LearnedRecord:
        """The record with at most `max_experts` that draft, and one of each kind of traffic."""
        for version in record.of_state(JOINED):
            if record.drafters[version.kind] != version.name:
                record = record.with_state(version.name, LEFT)
        joined = sorted(record.of_state(JOINED), key=lambda version: -version.base_gain)
        for version in joined[self.cfg.learn.max_experts :]:
            record = record.with_state(version.name, LEFT)
        return record

    def delete_unfinished(self) -> None:
        """Delete what a round has left that was killed, failed or became outdated."""
        if name := LearnedRecord.read(self.folder).training:
            delete_learned(self.cfg.runs_dir, self.target.name, [name])
            update_record(self.folder, lambda record: replace(record, training=""))

    def delete_unrecorded(self, record: LearnedRecord) -> None:
        """Delete what was learned and neither drafts nor would draft after a rollback."""
        deleted = {version.name for version in record.versions} - record.needed
        delete_learned(self.cfg.runs_dir, self.target.name, deleted)


def with_fresh(record: LearnedRecord, fresh: dict[str, int], current: LearnedRecord) -> LearnedRecord:
    """The current record with the numbers of new prompts, unless all was deleted since `record` was read."""
    return replace(current, fresh=fresh) if current.num_deletions == record.num_deletions else current


def is_adapter(runs: RunsFolder, name: str) -> bool:
    """Whether a drafter is an EAGLE-3 LoRA expert."""
    kind = kind_named(runs.summary(name).kind)
    return kind.name == Eagle3Kind.name and kind.is_adapter(runs.find(name))


def is_outdated(record: LearnedRecord, current: LearnedRecord, kind: str) -> bool:
    """Whether all was deleted, learning was frozen, or the kind's expert left, since a round began.

    record: when it began.
    """
    is_same = (current.num_deletions, current.drafters.get(kind)) == (record.num_deletions, record.drafters.get(kind))
    return current.frozen or not is_same


def require_current(current: LearnedRecord, record: LearnedRecord, kind: str) -> LearnedRecord:
    """The current record; OutdatedRoundError if a round that began with `record` must not change it."""
    if is_outdated(record, current, kind):
        raise OutdatedRoundError(f"a round of learning from {kind} is outdated")
    return current


def name_of(kind: str, stream: str, number: int) -> str:
    """Name of a version: servers of one folder of runs, each with a stream of its own, must not use one name.

    stream: id of the recorded stream.  number: of the version in it.
    """
    traffic = kind if kind == UNKNOWN else f"{kind}-traffic"
    return f"{traffic}-{stream[:4]}-v{number}"
