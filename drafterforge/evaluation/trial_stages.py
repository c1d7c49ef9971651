"""The stages of a command at the speed of short trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drafterforge.config.commands import PrepareDataConfig, TrainDrafterConfig
from drafterforge.data.spool import FLUSH_TOKENS
from drafterforge.evaluation.answering_trial import TrialAnswerer, answering_seconds, expected_lengths
from drafterforge.evaluation.planning import SAVED, UNTIMED, Stage, Workload, feature_bytes, held_out
from drafterforge.evaluation.trial_workload import PlannedPrompts
from drafterforge.targets.load import Target
from drafterforge.targets.shape import ModelShape


@dataclass
class Trials:
    """What the trials took."""

    start_s: float = 0.0  # from the start of the program until the target is loaded
    answerer: TrialAnswerer | None = None
    answers_peak: float = 0.0
    answer_bytes: float = 0.0  # on disk, of each token
    byte_s: float = 0.0  # to write, hash and read a byte
    capture_s: float = 0.0  # to compute and store the features of a token
    steps: Any = None  # StepTimes
    training_fixed_s: float = 0.0  # before the first step and after the last
    training_peak: float = 0.0
    drafter_bytes: float = 0.0
    decoding_fixed_s: float = 0.0  # loading, and settling mismatches
    decoding_peak: float = 0.0
    rows: list[Mapping[str, Any]] = field(default_factory=list)  # of the reports on the trial's drafter


def stages_of(
    trials: Trials, cfg: PrepareDataConfig, target: Target, shape: ModelShape, work: Workload, planned: PlannedPrompts
) -> list[Stage]:
    """The stages of the command, at the speed of the trials."""
    cached = cfg.data.features == "cached" and not planned.captured
    stages = [Stage("start", trials.start_s, "loading the program and the target")]
    if planned.answered:
        stages.append(Stage("answers", 0.0, f"made before: {work.num_answers:,} answers of {work.source}"))
    else:
        stages.append(_answers(trials, cfg, target, shape, work, cached))
    if cached:
        per_token = feature_bytes(cfg.target, shape.hidden)
        stored, words = work.stored_tokens * per_token, f"{work.stored_tokens:,} tokens x {per_token:,} bytes"
        if cfg.data.answers == "target" and not planned.answered:  # captured while answering
            words, seconds, disk = f"{words}; on disk twice until the last is stored", stored * trials.byte_s, stored
            memory = 0.0  # less than answering takes
        else:
            seconds, disk, memory = work.stored_tokens * trials.capture_s, 0.0, trials.answers_peak
        stages.append(Stage("features", seconds, words, work.stored_tokens, memory, disk, stored))
    if isinstance(cfg, TrainDrafterConfig):
        is_trained = Stage("training", 0.0, f"{cfg.drafter_name} was trained before")
        stages.append(is_trained if planned.trained else _training(trials, cfg, work))
        if not target.is_spread:
            stages.append(_decoding(trials, cfg, held_out(cfg.eval, work)))
    return stages


def _answers(
    trials: Trials, cfg: PrepareDataConfig, target: Target, shape: ModelShape, work: Workload, cached: bool
) -> Stage:
    """Answering the prompts.  cached: whether features are stored on the way."""
    data, answerer = cfg.data, trials.answerer
    lasting = trials.answer_bytes * (work.answered_tokens + sum(map(sum, work.prompts.values())))
    if data.answers != "target":
        return Stage("answers", 0.0, UNTIMED[data.answers], work.answered_tokens, trials.answers_peak, lasting=lasting)
    lengths = expected_lengths(answerer.lengths, data.max_new_tokens)
    seconds = sum(
        answering_seconds(prompts, lengths, data.batch_size, data.shard_size, answerer.speed())
        for prompts in work.prompts.values()
    )
    derivation = f"{work.num_answers:,} answers of {work.source}; {work.answered_tokens / seconds:,.0f} tokens/s"
    # beyond the trial: a cache for the longest answers, and captures that wait to be written
    longest = work.longest_prompt + data.max_new_tokens
    tried = max(map(sum, answerer.filled))
    memory = trials.answers_peak
    memory += max(0, longest - tried) * data.batch_size * shape.cache_bytes(target.compute_dtype.itemsize)
    if cached:
        per_token = feature_bytes(cfg.target, shape.hidden)
        shard = min(FLUSH_TOKENS, data.shard_size * work.stored_tokens / work.num_answers)
        memory += max(0.0, shard - sum(map(sum, answerer.filled))) * per_token
        seconds += work.stored_tokens * per_token * trials.byte_s
    return Stage("answers", seconds, derivation, work.answered_tokens, memory, lasting=lasting)


def _training(trials: Trials, cfg: TrainDrafterConfig, work: Workload) -> Stage:
    trainer, steps = cfg.trainer, trials.steps
    fixed = dict(memory=trials.training_peak, lasting=trials.drafter_bytes)
    if not steps.steps:  # a kind without steps, such as a datastore of answers
        return Stage("training", trials.training_fixed_s, "as long as the trial", 0, **fixed)
    timed = steps.steps[1:] or steps.steps
    token_s = sum(step.seconds for step in timed) / sum(step.tokens for step in timed)
    packed = min(trainer.tokens_per_batch, work.stored_tokens)
    mean = work.stored_tokens / max(1, sum(len(work.prompts.get(split, ())) for split in ("train", "val")))
    batch = max(mean, packed - mean / 2)  # the last sequence that would not fit is left for the next batch
    validated = sum(work.prompts.get("val", ())) + len(work.prompts.get("val", ())) * work.answer_tokens
    validation_s = sum(v.seconds for v in steps.validations) / max(1, sum(v.tokens for v in steps.validations))
    validations = -(-trainer.max_steps // trainer.val_every)
    tokens = round(trainer.max_steps * trainer.accumulate * batch)
    seconds = trials.training_fixed_s + tokens * token_s + validations * validated * validation_s
    return Stage(
        "training",
        seconds,
        f"{trainer.max_steps:,} steps of {batch * trainer.accumulate:,.0f} tokens at {1 / token_s:,.0f} tokens/s, "
        f"{validations} validations",
        tokens,
        disk=SAVED * steps.num_trained,
        trained=steps.num_trained,
        **fixed,
    )


def _decoding(trials: Trials, cfg: TrainDrafterConfig, num_prompts: int) -> Stage:
    lengths = expected_lengths(trials.answerer.lengths, cfg.eval.max_new_tokens) if trials.answerer else []
    lengths = [min(length, cfg.eval.max_new_tokens) for length in lengths]
    mean = sum(lengths) / len(lengths) if lengths else cfg.eval.max_new_tokens
    tokens = round(num_prompts * mean)
    seconds = trials.decoding_fixed_s + sum(tokens / row["tokens_per_s"] for row in trials.rows)
    return Stage(
        "decoding",
        seconds,
        f"{num_prompts} held-out prompts, {len(trials.rows)} methods, {mean:.0f} tokens each",
        tokens * len(trials.rows),
        trials.decoding_peak,
    )
