"""Estimates time, disk, memory and bundle size of a pool from the target's config alone.

Every estimate names its derivation.  Rates measured on this device come first; else rates follow from two figures of
the device, timed for a second: bytes read and multiplications done per second.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from drafterforge.artifacts.locate import artifact_dir, list_artifacts
from drafterforge.artifacts.manifest import MANIFEST, Manifest
from drafterforge.config.commands import PlanConfig
from drafterforge.kernels import gpu
from drafterforge.schedulers.latency import read_profile
from drafterforge.targets.shape import DRAFTER_LAYERS, ModelShape

HALF, SINGLE = 2, 4  # bytes of a number
TRAINED = 16  # bytes of a trained weight: weight, gradient and AdamW's two moments in single precision
READ_SHARE, MULTIPLY_SHARE = 0.6, 0.35  # rough share of the timed rates that decoding and training reach
GIBIBYTE = 2**30


@dataclass(frozen=True)
class DeviceRates:
    """What a device does per second, and the source of the figures."""

    bytes_per_s: float
    multiplications_per_s: float  # pairs of multiply and add
    source: str


@dataclass(frozen=True)
class Estimate:
    """One line of the plan."""

    quantity: str
    value: str
    derivation: str


def make_plan(
    cfg: PlanConfig, shape: ModelShape, rates: DeviceRates, number_bytes: int, recorded: RecordedRates
) -> list[Estimate]:
    """Estimates for `num_domains` drafters.  number_bytes: bytes of a target weight on this device."""
    data, trainer = cfg.data, cfg.trainer
    answers = cfg.num_domains * (data.num_train + data.num_val + data.num_test)
    tokens = answers * data.max_new_tokens
    feature_tokens = cfg.num_domains * (data.num_train + data.num_val) * (data.max_new_tokens + cfg.prompt_tokens)
    weights = shape.num_weights * number_bytes
    read = weights + data.batch_size * (cfg.prompt_tokens + data.max_new_tokens) * shape.cache_bytes(number_bytes)
    step_s = max(read_seconds(read, rates), multiply_seconds(data.batch_size * shape.num_weights, rates))
    decoded_per_s = recorded.answer_tokens_per_s or data.batch_size / step_s
    drafter = shape.drafter_weights(cfg.draft_vocab_size, cfg.trained_head)
    trained_tokens = cfg.num_domains * trainer.max_steps * trainer.tokens_per_batch * trainer.accumulate
    passes = 3 + trainer.checkpoint_steps  # forward, backward twice as much, and forward again
    training_s = multiply_seconds(trained_tokens * trainer.ttt_steps * passes * drafter, rates)
    stored = 1 if trainer.checkpoint_steps else trainer.ttt_steps
    states = trainer.tokens_per_batch * (4 * shape.hidden + stored * (8 * shape.hidden + 3 * shape.intermediate))
    logits = 3 * trainer.loss_chunk * min(cfg.draft_vocab_size, shape.vocab)
    training_bytes = TRAINED * drafter + SINGLE * (states + logits) + weights
    served = weights + cfg.num_domains * drafter * HALF
    cached = cfg.batch_size * cfg.context * shape.cache_bytes(number_bytes)
    cached += cfg.num_domains * cfg.batch_size * cfg.context * shape.cache_bytes(number_bytes, DRAFTER_LAYERS)
    plain_s = recorded.token_s or read_seconds(weights, rates)
    return [
        Estimate("target", f"{shape.num_weights / 1e6:,.0f} M weights, {size(weights)}", "config.json, without norms"),
        Estimate(
            "answering",
            f"{duration(tokens / decoded_per_s)} at {decoded_per_s:,.0f} tokens/s",
            f"{answers:,} answers of at most {data.max_new_tokens} tokens; rate: "
            + (recorded.answers_source or f"batches of {data.batch_size}, from {rates.source}"),
        ),
        Estimate(
            "features on disk",
            size(feature_tokens * feature_bytes(shape.hidden))
            if data.features == "cached"
            else "none (data.features=online)",
            f"{feature_tokens:,} tokens ({cfg.prompt_tokens} of each prompt) x {feature_bytes(shape.hidden):,} bytes",
        ),
        Estimate(
            "a drafter", f"{drafter / 1e6:,.1f} M weights, {size(drafter * HALF)}", "EAGLE-3, full weights, bfloat16"
        ),
        Estimate(
            "training, memory",
            size(training_bytes),
            f"{TRAINED} bytes per trained weight, activations of {trainer.tokens_per_batch:,} tokens, and the target",
        ),
        Estimate(
            "training, time",
            duration(training_s),
            f"{cfg.num_domains} x {trainer.max_steps} steps of {trainer.tokens_per_batch * trainer.accumulate:,} "
            f"tokens, {trainer.ttt_steps} drafted positions each; at {MULTIPLY_SHARE:.0%} of {rates.source}",
        ),
        Estimate("bundle", size(cfg.num_domains * drafter * HALF), "the drafters, without the target"),
        Estimate(
            "serving, memory",
            size(served + cached),
            f"target, {cfg.num_domains} drafters, caches of {cfg.batch_size} requests of {cfg.context:,} tokens",
        ),
        Estimate(
            "plain decoding",
            f"{1 / plain_s:,.1f} tokens/s",
            recorded.token_source or f"one request, weights read once per token, at {READ_SHARE:.0%} of {rates.source}",
        ),
    ]


LIMITS = (
    "Times derived from the device's rates are correct within a factor of about three; measured rates are closer.",
    "Answers that end early, early stopping and LoRA experts take less time; other programs on the device take more.",
    "All figures are for one device: a command uses one GPU. Measure speed-ups with `drafterforge eval`.",
)


def feature_bytes(hidden: int) -> int:
    """Bytes on disk of one token: three features and a final state in half precision, and the best token."""
    return HALF * 4 * hidden + 4


def read_seconds(num_bytes: float, rates: DeviceRates) -> float:
    return num_bytes / (READ_SHARE * rates.bytes_per_s)


def multiply_seconds(multiplications: float, rates: DeviceRates) -> float:
    return multiplications / (MULTIPLY_SHARE * rates.multiplications_per_s)


@dataclass(frozen=True)
class RecordedRates:
    """Rates recorded in artifacts of this target and device; 0 and empty where there are none."""

    answer_tokens_per_s: float = 0.0
    answers_source: str = ""
    token_s: float = 0.0
    token_source: str = ""


def recorded_rates(runs_dir: str, target: str, device: str) -> RecordedRates:
    """Rates in the answers and latency profiles of a runs folder."""
    rate, source, token_s, token_source = 0.0, "", 0.0, ""
    for name in list_artifacts(runs_dir, target, "answers"):
        folder = artifact_dir(runs_dir, target, "answers", name)
        if (folder / MANIFEST).is_file() and (measured := Manifest.read(folder).metrics.get("tokens_per_s")):
            rate, source = float(measured), f"measured when {folder} was made, perhaps on another machine"
    for name in list_artifacts(runs_dir, target, "latency"):
        folder = artifact_dir(runs_dir, target, "latency", name)
        profile = read_profile(folder)
        if profile.device == device:
            token_s = float(profile.token_s(torch.tensor([256]).numpy())[0])
            token_source = f"latency profile {folder}, at 256 tokens of context"
    return RecordedRates(rate, source, token_s, token_source)


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
