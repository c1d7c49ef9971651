"""What a command takes, stage by stage: seconds, tokens, disk and memory; what does not fit, and what to type instead.

Without trials, figures follow from the target's config.json and two rates of the device: bytes read and multiplications
done per second.  `stage_trials` replaces them by what short trials of every stage took here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from drafterforge.config.commands import PrepareDataConfig, TrainDrafterConfig
from drafterforge.config.drafter import Eagle3DrafterConfig
from drafterforge.config.plan import PlannedCommand
from drafterforge.kernels import gpu
from drafterforge.targets.shape import ModelShape

HALF, SINGLE = 2, 4  # bytes of a number
TRAINED = 16  # bytes of a trained weight: weight, gradient and AdamW's two moments in single precision
SAVED = 16  # bytes on disk of a trained weight while it is trained: weight and moments to resume from, best weights
READ_SHARE, MULTIPLY_SHARE = 0.6, 0.35  # assumed share of the rates that decoding and training reach
ASSUMED_PROMPT = 128  # tokens of a prompt that cannot be read before it is fetched
DECODED_METHODS = 3  # plain, chain and tree: of the report on a new drafter
GIBIBYTE = 2**30
UNTIMED = {"given": "given with the prompts", "served": "by the server; its time is not estimated"}  # answers


@dataclass(frozen=True)
class Workload:
    """The prompts of a command and the lengths of their answers."""

    prompts: dict[str, list[int]]  # prompt tokens of each answer, by split
    answer_tokens: float  # mean length of an answer
    source: str  # of these figures

    @property
    def num_answers(self) -> int:
        return sum(map(len, self.prompts.values()))

    @property
    def answered_tokens(self) -> int:
        """Tokens that the target decodes."""
        return round(self.num_answers * self.answer_tokens)

    @property
    def stored_tokens(self) -> int:
        """Tokens whose features training reads: prompts and answers of training and validation."""
        lengths = [length for split in ("train", "val") for length in self.prompts.get(split, ())]
        return round(sum(lengths) + len(lengths) * self.answer_tokens)


@dataclass(frozen=True)
class DeviceRates:
    """What a device does per second, and the source of the figures."""

    bytes_per_s: float
    multiplications_per_s: float  # pairs of multiply and add
    source: str


@dataclass(frozen=True)
class Stage:
    """What a stage of a command takes."""

    name: str
    seconds: float
    derivation: str
    tokens: int = 0
    memory: float = 0.0  # bytes of the device at its peak
    disk: float = 0.0  # bytes on disk that go when the stage ends
    lasting: float = 0.0  # bytes on disk that stay


@dataclass(frozen=True)
class Room:
    """Bytes that are free."""

    memory: float
    disk: float


def peak_disk(stages: Sequence[Stage]) -> float:
    """Bytes on disk at the peak, beyond those that are there before."""
    lasting, peak = 0.0, 0.0
    for stage in stages:
        lasting += stage.lasting
        peak = max(peak, lasting + stage.disk)
    return peak


# --- estimates without trials --------------------------------------------------------------------


def feature_bytes(hidden: int) -> int:
    """Bytes on disk of one token: three features and a final state in half precision, and the best token."""
    return HALF * 4 * hidden + 4


def activation_bytes(cfg: TrainDrafterConfig, shape: ModelShape) -> float:
    """Bytes that training holds for each packed token."""
    stored = 1 if cfg.trainer.checkpoint_steps else cfg.trainer.ttt_steps
    states = cfg.trainer.ttt_steps * 2 * shape.hidden if cfg.trainer.checkpoint_steps else 0
    return SINGLE * (4 * shape.hidden + states + stored * (8 * shape.hidden + 3 * shape.intermediate))


def estimate_stages(
    cfg: PrepareDataConfig, shape: ModelShape, rates: DeviceRates, number_bytes: int, work: Workload
) -> list[Stage]:
    """The stages of `prepare-data` and `train-drafter`.  number_bytes: bytes of a target weight on this device."""
    data = cfg.data
    weights = shape.num_weights * number_bytes
    longest = max(max(lengths, default=0) for lengths in work.prompts.values()) + data.max_new_tokens
    cache = data.batch_size * longest * shape.cache_bytes(number_bytes)
    answers = Stage("answers", 0.0, "made before", memory=weights)
    if data.answers == "target" and work.num_answers:
        step_s = max(read_seconds(weights + cache, rates), multiply_seconds(data.batch_size * shape.num_weights, rates))
        prefill = sum(map(sum, work.prompts.values())) * shape.num_weights
        seconds = work.answered_tokens / data.batch_size * step_s + multiply_seconds(prefill, rates)
        answers = Stage(
            "answers",
            seconds,
            f"{work.num_answers:,} answers of {work.source}, {data.batch_size} at once",
            tokens=work.answered_tokens,
            memory=weights + cache,
            lasting=5 * (work.stored_tokens + sum(work.prompts.get("test", ()))),
        )
    elif work.num_answers:
        answers = replace(answers, derivation=UNTIMED[data.answers], lasting=5 * work.stored_tokens)
    capture_s = multiply_seconds(work.stored_tokens * shape.num_weights, rates)
    stages = [answers, features_stage(cfg, work, shape.hidden, capture_s, weights)]
    if not isinstance(cfg, TrainDrafterConfig) or not isinstance(cfg.drafter, Eagle3DrafterConfig):
        return [stage for stage in stages if stage]
    trainer, drafter_cfg = cfg.trainer, cfg.drafter
    drafter = shape.drafter_weights(drafter_cfg.draft_vocab_size, own_head=True)
    trained = shape.drafter_weights(drafter_cfg.draft_vocab_size, own_head=drafter_cfg.head == "own")
    tokens = trainer.max_steps * trainer.tokens_per_batch * trainer.accumulate
    passes = 3 + trainer.checkpoint_steps  # forward, backward twice as much, and forward again
    products = tokens * trainer.ttt_steps * passes * drafter
    validated = sum(work.prompts.get("val", ())) + len(work.prompts.get("val", ())) * work.answer_tokens
    validations = -(-trainer.max_steps // trainer.val_every)
    products += validations * validated * trainer.validated_steps * drafter
    if data.features == "online":
        products += (tokens + validations * validated) * shape.num_weights
    logits = 3 * SINGLE * trainer.loss_chunk * min(drafter_cfg.draft_vocab_size, shape.vocab)
    training = Stage(
        "training",
        multiply_seconds(products, rates),
        f"{trainer.max_steps:,} steps of {trainer.tokens_per_batch * trainer.accumulate:,} tokens, "
        f"{trainer.ttt_steps} positions each, at {MULTIPLY_SHARE:.0%} of the arithmetic",
        tokens=tokens,
        memory=weights + TRAINED * trained + trainer.tokens_per_batch * activation_bytes(cfg, shape) + logits,
        disk=SAVED * trained,
        lasting=HALF * trained,
    )
    decoded = cfg.eval.num_prompts * cfg.eval.max_new_tokens * DECODED_METHODS
    decoding = Stage(
        "decoding",
        decoded * read_seconds(weights, rates),
        f"{cfg.eval.num_prompts} held-out prompts, {DECODED_METHODS} methods, each as fast as plain decoding",
        tokens=decoded,
        memory=weights + HALF * drafter,
    )
    return [stage for stage in (*stages, training, decoding) if stage]


def features_stage(cfg: PrepareDataConfig, work: Workload, hidden: int, seconds: float, memory: float) -> Stage | None:
    """Storing features; None if they are computed at every step.  seconds: to compute and store them."""
    if cfg.data.features == "online" or not work.num_answers:
        return None
    size = work.stored_tokens * feature_bytes(hidden)
    spooled = size if cfg.data.answers == "target" else 0  # there while answering, until the features are complete
    derivation = f"{work.stored_tokens:,} tokens x {feature_bytes(hidden):,} bytes"
    if spooled:
        derivation, seconds = f"{derivation}; twice until all are stored", 0.0
    return Stage("features", seconds, derivation, work.stored_tokens, memory, disk=spooled, lasting=size)


def read_seconds(num_bytes: float, rates: DeviceRates) -> float:
    return num_bytes / (READ_SHARE * rates.bytes_per_s)


def multiply_seconds(multiplications: float, rates: DeviceRates) -> float:
    return multiplications / (MULTIPLY_SHARE * rates.multiplications_per_s)


def measure_device(device: torch.device, dtype: torch.dtype, side: int = 2048, repeats: int = 5) -> DeviceRates:
    """Time a large copy and a large matrix product; the best of `repeats`."""
    matrix = torch.randn(side, side, device=device).to(dtype)
    block = torch.empty(64 * 2**20, dtype=torch.uint8, device=device)

    def best(work: Any) -> float:
        seconds = []
        for _ in range(repeats):
            began = time.perf_counter()
            work()
            gpu.synchronize(device)
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    copied, multiplied = best(block.clone), best(lambda: matrix @ matrix)
    bytes_per_s, products = 2 * block.numel() / copied, side**3 / multiplied
    source = f"{bytes_per_s / 1e9:,.0f} GB/s and {2 * products / 1e12:,.2f} TFLOP/s, timed just now"
    return DeviceRates(bytes_per_s, products, source)


# --- what does not fit ---------------------------------------------------------------------------


def misfits(
    planned: PlannedCommand, stages: Sequence[Stage], room: Room, shape: ModelShape, weights: float
) -> list[str]:
    """What does not fit, one line each, with the command to type instead.  weights: bytes of the target's."""
    lines = []
    cfg, by_name = planned.config, {stage.name: stage for stage in stages}
    disk = peak_disk(stages)
    if disk > room.disk:
        fitting = ["data.features=online"]
        if "features" not in by_name or disk - by_name["features"].lasting - by_name["features"].disk > room.disk:
            fitting = [f"data.num_train={max(1, int(cfg.data.num_train * room.disk / disk))}"]
        lines.append(_misfit("disk", disk, room.disk, f"in {planned.runs_dir}", planned, fitting))
    for name, stage in by_name.items():
        if stage.memory <= room.memory:
            continue
        if weights > room.memory:
            smaller = [] if weights == HALF * shape.num_weights else ["target.dtype=bfloat16"]
            settings = smaller or ["target.device_map=auto"]
            lines.append(_misfit("the target's weights", weights, room.memory, "of memory", planned, settings))
            break
        lines.append(_misfit(name, stage.memory, room.memory, "of memory", planned, _smaller(cfg, stage, room, shape)))
    return lines


def _smaller(cfg: PrepareDataConfig, stage: Stage, room: Room, shape: ModelShape) -> list[str]:
    """Settings with which a stage fits; empty if there are none."""
    if stage.name in ("answers", "features"):
        return [f"data.batch_size={max(1, cfg.data.batch_size // 2)}"]
    if stage.name == "training" and isinstance(cfg, TrainDrafterConfig):
        trainer = cfg.trainer
        if not trainer.checkpoint_steps:
            return ["trainer.checkpoint_steps=true"]
        per_token = activation_bytes(cfg, shape)
        fixed = stage.memory - per_token * trainer.tokens_per_batch
        parts = 2
        while parts < trainer.tokens_per_batch and fixed + per_token * trainer.tokens_per_batch / parts > room.memory:
            parts *= 2
        if fixed < room.memory:
            tokens = max(1, trainer.tokens_per_batch // parts)
            return [f"trainer.tokens_per_batch={tokens}", f"trainer.accumulate={trainer.accumulate * parts}"]
        return ["drafter.head=target"] if getattr(cfg.drafter, "head", "") == "own" else []
    return ["eval.check_float32=false"] if stage.name == "decoding" and cfg.eval.check_float32 else []


def _misfit(what: str, needed: float, free: float, where: str, planned: PlannedCommand, settings: Sequence[str]) -> str:
    remedy = "a larger device is needed"
    if settings:
        remedy = f"type `{planned.with_settings(*settings)}`"
    return f"does not fit: {what} takes {size(needed)}, but {size(free)} {where} are free; {remedy}"


def size(num_bytes: float) -> str:
    return f"{num_bytes / GIBIBYTE:,.1f} GiB" if num_bytes >= GIBIBYTE else f"{num_bytes / 2**20:,.1f} MiB"


def duration(seconds: float) -> str:
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:,.0f} s"
