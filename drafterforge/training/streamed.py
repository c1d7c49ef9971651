"""Training on a stream: answers held out from its first shards, and batches of shards that are read once and deleted.

A checkpoint records its position in the stream, and a shard is released only when a checkpoint lies behind it.  So a
run that is killed and started again trains on what an uninterrupted one would have, batch by batch: no shard is lost
and none is counted twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from torch.utils.data import IterableDataset

from drafterforge.artifacts.atomic import save_json_atomic, write_bytes_atomic
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.run import artifact_run
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.progress import bar, say
from drafterforge.data.answers import SPLITS, Answer, AnswerRows, AnswerSet, answer_stats, encode_shard
from drafterforge.data.features import FeatureSet, prepare_features
from drafterforge.data.joined import JoinedAnswers
from drafterforge.data.served import ServedCaptures
from drafterforge.data.stream import GB, StreamRecord
from drafterforge.data.stream_reader import StreamReader
from drafterforge.drafters.eagle3.train.ttt import PackedBatch
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.targets.capture import FeatureCapture
from drafterforge.targets.load import Target
from drafterforge.training.batches import PackedData
from drafterforge.training.best_checkpoint import BestCheckpoint

HELD_OUT = ("val", "test")
BATCHES = 8  # batches of a segment, at least: shards are read together until they have as many
SEGMENT_SHARE, SAVE_SHARE, VOCABULARY_SHARE, HEAD_SHARE = 1 / 8, 1 / 4, 1 / 4, 1 / 2  # of the stream's bound


def open_reader(cfg: TrainDrafterConfig) -> StreamReader:
    """The reader of the configured stream, under the drafter's name."""
    return StreamReader(cfg.data.stream, cfg.drafter_name, cfg.data.stream_readers)


def finish_reading(cfg: TrainDrafterConfig) -> None:
    """Give up the configured stream, if there is one: its writer may stop."""
    if cfg.data.stream:
        open_reader(cfg).finish()


def held_out_answers(cfg: TrainDrafterConfig, target: Target) -> AnswerSet:
    """The `answers` artifact of the stream's first shards: those held out, and training texts for the draft vocabulary.

    The writer names the held-out answers; in the traffic of a server, they are the first ones.
    """
    reader = open_reader(cfg)
    record = reader.record
    counts = record.held_out or {"val": cfg.data.num_val, "test": cfg.data.num_test}
    config = {"domain": cfg.domain.name, "stream": record.id, "held_out": counts, "num_train": cfg.data.num_train}
    path = artifact_dir(cfg.runs_dir, target.name, "answers", cfg.name or cfg.domain.name)
    run = artifact_run(path, "answers", target, config, overwrite=cfg.overwrite)
    if run.existing is not None:
        return AnswerSet(path, run.existing)
    require_unread(reader)
    rows = _first_rows(reader, record, counts, cfg)
    metrics: dict[str, Any] = {}
    with run.write(metrics) as folder:
        files = [folder / f"{split}-00000.arrow" for split in SPLITS]
        for split, file in zip(SPLITS, files, strict=True):
            write_bytes_atomic(file, encode_shard(list(enumerate(rows[split]))))
        stats = answer_stats(files)
        save_json_atomic(folder / "stats.json", stats)
        metrics |= stats
    return AnswerSet.open(path, target.fingerprint, verify=False)


def require_start(cfg: TrainDrafterConfig, folder: Path) -> None:
    """See `require_unread`, of a training without a checkpoint; says what of a server's traffic was read before.

    folder: of the training's checkpoints.
    """
    reader = open_reader(cfg)
    if not reader.released or BestCheckpoint(folder, cfg.trainer.patience).last_path.exists():
        return
    require_unread(reader)
    say(f"stream: the first {reader.released} shards were read before; training begins after them")


def require_unread(reader: StreamReader) -> None:
    """ConfigError if shards of a stream of `prepare-data` were read before, as each comes once."""
    if reader.released and reader.record.held_out:
        raise ConfigError(
            f"{reader.path.stem} has read the first {reader.released} shards of {reader.folder} before, and no "
            "checkpoint goes on after them; type data.stream=OTHER here and for prepare-data, which then answers all "
            "prompts again"
        )


def _first_rows(
    reader: StreamReader, record: StreamRecord, counts: dict[str, int], cfg: TrainDrafterConfig
) -> dict[str, list[Answer]]:
    rows: dict[str, list[Answer]] = {split: [] for split in SPLITS}
    number, size, prompts = reader.released, 0, dict[bytes, str]()
    limit = record.limit_bytes
    total = sum(counts.values()) + cfg.data.num_train
    with bar("reading the stream's first answers", total) as progress:
        while True:
            complete = all(len(rows[split]) >= counts[split] for split in HELD_OUT)
            if complete and rows["train"]:
                if len(rows["train"]) >= cfg.data.num_train or size >= limit * VOCABULARY_SHARE:
                    return rows
            elif size > limit * HEAD_SHARE:
                raise ConfigError(
                    f"half of the stream's {limit / GB:.3g} GB holds {len(rows['val'])} of {counts['val']} validation "
                    f"answers; start its writer with data.stream_gb={2 * limit / GB:.3g}, or a smaller data.num_val"
                )
            paths = reader.shard(number)
            if paths is None:
                break
            for answer in AnswerRows([path for path in paths if path.suffix == ".arrow"]):
                split = answer.split
                if not record.held_out:  # a prompt that comes again stays in its split
                    prompt = _prompt(answer)
                    missing = [name for name in HELD_OUT if len(rows[name]) < counts[name]]
                    split = prompts.setdefault(prompt, missing[0] if missing else "train")
                rows[split].append(dataclasses.replace(answer, split=split, domain=answer.domain or cfg.domain.name))
            number, size = number + 1, size + reader.sizes[number]
            progress.reach(min(total, sum(map(len, rows.values()))))
    for split in SPLITS:
        if not rows[split]:
            raise ArtifactError(
                f"{reader.folder} ended with no {split} answers; answer more prompts, or hold out fewer "
                "with data.num_val= and data.num_test="
            )
    return rows


def validation_features(cfg: TrainDrafterConfig, target: Target, answers: AnswerSet) -> FeatureSet:
    """The `features` artifact of the held-out answers for validation; checks the stream's taps on the way."""
    captures = ServedCaptures(cfg.data.stream, FeatureCapture(target))
    with bar("reading validation features", 1) as progress:
        return prepare_features(
            answers,
            captures,
            path=artifact_dir(cfg.runs_dir, target.name, "features", answers.path.name),
            target=target,
            config={"taps": list(target.backbone.taps), "dtype": str(target.dtype)},
            progress=progress.update,
            overwrite=cfg.overwrite,
            splits=("val",),
            alternative="name=OTHER",
        )


def streamed(cfg: TrainDrafterConfig, target: Target, answers: JoinedAnswers) -> StreamedData:
    """Training batches of the configured stream; of a mixture, those of the drafter's domain."""
    held_out = {_prompt(answer) for split in HELD_OUT for answer in answers.rows(split)}
    return StreamedData(
        open_reader(cfg),
        FeatureCapture(target),
        held_out,
        cfg.trainer.tokens_per_batch,
        cfg.seed,
        cfg.data.stream_epochs,
        answers.selected_domain(cfg.domain.answers_domain),
    )


def _prompt(answer: Answer) -> bytes:
    return repr(answer.input_ids[: answer.prompt_tokens]).encode()


@dataclass(frozen=True)
class Position:
    """A place in a stream: batches that are done of the segment of shards first..end-1."""

    first: int
    end: int = 0  # 0: the segment is not laid out yet
    batch: int = 0


class StreamedData(IterableDataset):
    """Training batches of a stream, until it ends.

    Shards are read in segments of some batches, in which answers are shuffled.  The layout is a function of the shards,
    the seed and the position, so a resumed run reads what an uninterrupted one would have.  Of several ranks, each
    packs every num_ranks-th batch; at the end, batches that not every rank has one of are left out.
    """

    def __init__(
        self,
        reader: StreamReader,
        target: FeatureCapture,
        held_out: set[bytes],
        tokens_per_batch: int,
        seed: int,
        epochs: int = 1,
        domain: str = "",
    ) -> None:
        """held_out: prompts whose answers are left out.  epochs: times that each segment is read.

        domain: of the answers to train on, beside those that name none; empty: all.
        """
        super().__init__()
        self.reader, self.held_out, self.epochs, self.domain = reader, held_out, epochs, domain
        self.captures = ServedCaptures(reader.folder, target)
        self.tokens_per_batch, self.seed = tokens_per_batch, seed
        self.first_batch: Callable[[], int] = lambda: 0  # called when iteration starts
        self.start = Position(reader.released)
        self.positions: dict[int, Position] = {}  # after a number of batches
        self.ended = False
        self.rank, self.num_ranks = 0, 1
        self.wait: Callable[[], None] = lambda: None  # called while a shard is not there

    def __iter__(self) -> Iterator[PackedBatch]:
        position, count = self.start, self.first_batch()
        self.positions, first = {count: position}, count
        while True:
            segment = self._segment(position)
            if segment is None:
                self.ended = True
                return
            rows, end = segment
            seed = (self.seed * 1_000_003 + position.first) % 2**40  # `PackedData` multiplies it once more
            data = PackedData(
                rows, lambda indices, rows=rows: self._capture(rows, indices), self.tokens_per_batch, seed
            )
            plans = [plan for epoch in range(self.epochs) for plan in data.plan(epoch)]
            if not plans:
                self.positions[count] = Position(end)
            for number in range(position.batch, len(plans)):
                turn = (count - first) % self.num_ranks
                if turn == self.rank:
                    batch = data.pack(plans[number])
                count += 1
                is_last = number + 1 == len(plans)
                self.positions[count] = Position(end) if is_last else Position(position.first, end, number + 1)
                if turn == self.num_ranks - 1:
                    yield batch
            position = Position(end)

    def position(self, batches: int) -> Position:
        """The position after so many batches."""
        batches = min(batches, max(self.positions))
        for count in [count for count in self.positions if count < batches]:
            del self.positions[count]
        return self.positions[batches]

    def _segment(self, position: Position) -> tuple[list[Answer], int] | None:
        """Answers of the shards from a position on, and the number after the last; None at the end of the stream."""
        rows: list[Answer] = []
        files: list[Path] = []
        number, tokens, size = position.first, 0, 0
        limit = self.reader.record.limit_bytes * SEGMENT_SHARE
        while number < position.end or not (position.end or tokens >= BATCHES * self.tokens_per_batch or size >= limit):
            paths = self.reader.shard(number, self.wait)
            if paths is None:
                break
            for path in paths:
                if path.suffix == ".arrow":
                    answers = [answer for answer in AnswerRows([path]) if self._is_trained_on(answer)]
                    rows += answers
                    tokens += sum(len(answer.input_ids) for answer in answers)
                else:
                    files.append(path)
            size += self.reader.sizes[number]
            number += 1
        if number == position.first:
            return None
        self.captures.open(files)
        return rows, number

    def _is_trained_on(self, answer: Answer) -> bool:
        return (not self.domain or answer.domain in ("", self.domain)) and _prompt(answer) not in self.held_out

    def _capture(self, rows: list[Answer], indices: list[int]) -> list[Any]:
        return self.captures([rows[index] for index in indices])


class StreamProgress(Callback):
    """Keeps a run's position in its stream, and releases shards that are behind a checkpoint.

    A checkpoint is saved whenever a quarter of the stream's bound was read since the last.
    """

    def __init__(self, data: StreamedData) -> None:
        self.data, self.position = data, data.start
        self.checkpoint: BestCheckpoint | None = None

    @property
    def state_key(self) -> str:
        """Key of this callback's state in `last.ckpt`."""
        return "stream"

    def state_dict(self) -> dict[str, Any]:
        """The position, for `last.ckpt`."""
        return dataclasses.asdict(self.position)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on at a position."""
        self.position = self.data.start = Position(**state_dict)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Follow the checkpoints of this run."""
        self.checkpoint = next(entry for entry in trainer.callbacks if isinstance(entry, BestCheckpoint))
        self.checkpoint.after_save.append(self.release)
        self.data.wait = self.wait

    def release(self) -> None:
        """Give up the shards behind the checkpoint that was just saved."""
        self.data.reader.release(self.position.first, record=self.data.rank == 0)

    def wait(self) -> None:
        """End an interrupted run that waits for a shard: it resumes from the last checkpoint."""
        if self.checkpoint.interruption.requested:
            self.checkpoint.interruption.end()

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *args: Any, **kwargs: Any) -> None:
        """Note the position after a whole step, and save where the stream needs room."""
        data = self.data
        self.position = data.position(trainer.global_step * trainer.accumulate_grad_batches * data.num_ranks)
        done = data.reader.bytes_before(self.position.first)  # the same on all ranks, which save together
        if done >= data.reader.record.limit_bytes * SAVE_SHARE:
            self.checkpoint.save_step(trainer)
        if trainer.is_last_batch:  # so that lightning validates once more
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Stop at the end of the stream; ConfigError if it ended before the first step."""
        if self.data.ended:
            if not trainer.global_step:
                raise ConfigError(
                    f"{self.data.reader.folder} ended before the first step of training: none of its shards from "
                    f"{self.data.start.first} on has answers to train on; type data.stream=OTHER"
                )
            say(f"stream: ended at step {trainer.global_step} of {trainer.max_steps}")
            trainer.should_stop = True
