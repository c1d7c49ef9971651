"""What a command takes, stage by stage: seconds, tokens, disk and memory.

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
from drafterforge.config.drafter import Eagle3DrafterConfig, LoraConfig
from drafterforge.config.evaluation import EvalConfig
from drafterforge.config.target import TargetConfig
from drafterforge.kernels import gpu
from drafterforge.targets.shape import ModelShape
from drafterforge.targets.spread import ROOM

HALF, SINGLE = 2, 4  # bytes of a number
TRAINED = 16  # bytes of a trained weight: weight, gradient and AdamW's two moments in single precision
GATHERED = 8  # of these with FSDP on every device: weight and gradient; the 16 are shared out
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
    prompt_limit: int = 0  # tokens of the longest prompt, where `prompts` does not have it

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return self.prompt_limit or max(max(lengths, default=0) for lengths in self.prompts.values())

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
class Devices:
    """The devices that a command trains on; it answers prompts and decodes on the first."""

    local: int = 1  # of each machine
    total: int = 1  # of all machines
    host: bool = False  # whether they are processes on a CPU, which share the machine's memory
    memory: float = float("inf")  # free bytes of each


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
    trained: int = 0  # weights that it trains


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


def weights_on_device(target: TargetConfig, weights: float, free: float) -> float:
    """Bytes of the target's weights on the main device.  weights: of the target.  free: memory of the device."""
    return min(weights, ROOM * free) if target.device_map else weights


def feature_bytes(target: TargetConfig, hidden: int) -> int:
    """Bytes on disk of one token: its features and a final state in half precision, and the best token."""
    return HALF * (target.num_taps + 1) * hidden + 4


def activation_bytes(cfg: TrainDrafterConfig, shape: ModelShape) -> float:
    """Bytes that training holds for each packed token."""
    stored = 1 if cfg.trainer.checkpoint_steps else cfg.trainer.ttt_steps
    states = cfg.trainer.ttt_steps * 2 * shape.hidden if cfg.trainer.checkpoint_steps else 0
    inputs = (cfg.target.num_taps + 1) * shape.hidden
    return SINGLE * (inputs + states + stored * (8 * shape.hidden + 3 * shape.intermediate))


def held_out(cfg: EvalConfig, work: Workload) -> int:
    """Number of held-out prompts that are decoded at the end of a training."""
    return min(cfg.num_prompts, len(work.prompts.get("test", ())) or cfg.num_prompts)


def adapter_weights(shape: ModelShape, lora: LoraConfig, draft_vocab: int) -> int:
    """Weights of a LoRA of an EAGLE-3 drafter."""
    heads, keys = shape.heads * shape.head_dim, shape.key_heads * shape.head_dim
    sizes = {
        "q_proj": (2 * shape.hidden, heads),
        "k_proj": (2 * shape.hidden, keys),
        "v_proj": (2 * shape.hidden, keys),
        "o_proj": (heads, shape.hidden),
        "gate_proj": (shape.hidden, shape.intermediate),
        "up_proj": (shape.hidden, shape.intermediate),
        "down_proj": (shape.intermediate, shape.hidden),
        "fc": (3 * shape.hidden, shape.hidden),
        "lm_head": (shape.hidden, min(draft_vocab, shape.vocab)),
    }
    return sum(lora.rank * sum(sizes[name]) for name in lora.targets)


def estimate_stages(
    cfg: PrepareDataConfig,
    shape: ModelShape,
    rates: DeviceRates,
    number_bytes: int,
    work: Workload,
    devices: Devices = Devices(),
) -> list[Stage]:
    """The stages of `prepare-data` and `train-drafter`.  number_bytes: bytes of a target weight on this device."""
    data = cfg.data
    weights = shape.num_weights * number_bytes
    held = weights_on_device(cfg.target, weights, devices.memory)
    longest = work.longest_prompt + data.max_new_tokens
    rows = min(data.batch_size, max(map(len, work.prompts.values())))
    token_cache = shape.cache_bytes(number_bytes)
    cache = rows * longest * token_cache
    answers = Stage("answers", 0.0, "made before", memory=held)
    if data.answers == "target" and work.num_answers:
        typical = max(max(lengths, default=0) for lengths in work.prompts.values()) + data.max_new_tokens
        read_s = read_seconds(weights + data.batch_size * typical * token_cache, rates)
        step_s = max(read_s, multiply_seconds(data.batch_size * shape.active_weights, rates))
        prefill = sum(map(sum, work.prompts.values())) * shape.active_weights
        seconds = work.answered_tokens / data.batch_size * step_s + multiply_seconds(prefill, rates)
        answers = Stage(
            "answers",
            seconds,
            f"{work.num_answers:,} answers of {work.source}, {data.batch_size} at once",
            tokens=work.answered_tokens,
            memory=held + cache,
            lasting=5 * (work.stored_tokens + sum(work.prompts.get("test", ()))),
        )
    elif work.num_answers:
        answers = replace(answers, derivation=UNTIMED[data.answers], lasting=5 * work.stored_tokens)
    capture_s = multiply_seconds(work.stored_tokens * shape.active_weights, rates)
    stages = [answers, features_stage(cfg, work, shape.hidden, capture_s, held)]
    if not isinstance(cfg, TrainDrafterConfig) or not isinstance(cfg.drafter, Eagle3DrafterConfig):
        return share_out([stage for stage in stages if stage], cfg, devices, weights)
    trainer, drafter_cfg = cfg.trainer, cfg.drafter
    drafter = shape.drafter_weights(drafter_cfg.draft_vocab_size, own_head=True)
    trained = shape.drafter_weights(drafter_cfg.draft_vocab_size, own_head=drafter_cfg.head == "own")
    if drafter_cfg.is_adapter:
        trained = adapter_weights(shape, drafter_cfg.lora, drafter_cfg.draft_vocab_size)
    tokens = trainer.max_steps * trainer.tokens_per_batch * trainer.accumulate
    passes = 3 + trainer.checkpoint_steps  # forward, backward twice as much, and forward again
    products = tokens * trainer.ttt_steps * passes * drafter
    validated = sum(work.prompts.get("val", ())) + len(work.prompts.get("val", ())) * work.answer_tokens
    validations = -(-trainer.max_steps // trainer.val_every)
    products += validations * validated * trainer.validated_steps * drafter
    if data.features == "online":
        products += (tokens + validations * validated) * shape.active_weights
    logits = 3 * SINGLE * trainer.loss_chunk * min(drafter_cfg.draft_vocab_size, shape.vocab)
    training = Stage(
        "training",
        multiply_seconds(products, rates),
        f"{trainer.max_steps:,} steps of {trainer.tokens_per_batch * trainer.accumulate:,} tokens, "
        f"{trainer.ttt_steps} positions each, at {MULTIPLY_SHARE:.0%} of the arithmetic",
        tokens=tokens,
        memory=held
        + TRAINED * trained
        + SINGLE * (drafter if drafter_cfg.is_adapter else 0)
        + max(trainer.tokens_per_batch, longest) * activation_bytes(cfg, shape)
        + logits,
        disk=SAVED * trained,
        lasting=HALF * trained,
        trained=trained,
    )
    stages.append(training)
    if cfg.target.device_map:  # decoding needs one device
        return share_out([stage for stage in stages if stage], cfg, devices, weights)
    # on a GPU, the check in single precision is left out if it does not fit
    checks = devices.host and cfg.eval.check_float32 and number_bytes < SINGLE
    num_prompts = held_out(cfg.eval, work)
    decoded = num_prompts * cfg.eval.max_new_tokens * DECODED_METHODS
    decoding = Stage(
        "decoding",
        decoded * read_seconds(shape.active_weights * number_bytes, rates),
        f"{num_prompts} held-out prompts, {DECODED_METHODS} methods, each as fast as plain decoding",
        tokens=decoded,
        memory=weights + HALF * drafter + checks * SINGLE * shape.num_weights,
    )
    return share_out([stage for stage in (*stages, decoding) if stage], cfg, devices, weights)


def share_out(stages: Sequence[Stage], cfg: PrepareDataConfig, devices: Devices, weights: float) -> list[Stage]:
    """The stages of one device on several: the memory of each GPU, or of all processes on a CPU together."""
    processes = devices.local if devices.host else 1
    shared = []
    for stage in stages:
        memory = stage.memory
        if stage.name == "training" and isinstance(cfg, TrainDrafterConfig):
            if cfg.trainer.strategy == "fsdp" and devices.total > 1:
                memory += (GATHERED + TRAINED / devices.total - TRAINED) * stage.trained
            memory *= processes
        elif stage.name in ("answers", "features"):  # the others hold the target, and wait
            memory += (processes - 1) * weights
        shared.append(replace(stage, memory=memory))
    return shared


def features_stage(cfg: PrepareDataConfig, work: Workload, hidden: int, seconds: float, memory: float) -> Stage | None:
    """Storing features; None if they are computed at every step.  seconds: to compute and store them."""
    if cfg.data.features == "online" or not work.num_answers:
        return None
    size = work.stored_tokens * feature_bytes(cfg.target, hidden)
    spooled = size if cfg.data.answers == "target" else 0  # there while answering, until the features are complete
    derivation = f"{work.stored_tokens:,} tokens x {feature_bytes(cfg.target, hidden):,} bytes"
    if spooled:
        derivation, seconds = f"{derivation}; on disk twice until the last is stored", 0.0
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


def size(num_bytes: float) -> str:
    return f"{num_bytes / GIBIBYTE:,.1f} GiB" if num_bytes >= GIBIBYTE else f"{num_bytes / 2**20:,.1f} MiB"


def duration(seconds: float) -> str:
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:,.0f} s"
