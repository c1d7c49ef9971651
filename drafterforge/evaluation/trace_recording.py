"""Records traces of held-out answers for all configured drafters, in resumable shards."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from drafterforge.artifacts.atomic import link_or_copy
from drafterforge.artifacts.folder import is_complete, open_artifact
from drafterforge.artifacts.locate import artifact_dir, find_artifact
from drafterforge.artifacts.run import artifact_run
from drafterforge.assembly.pools import open_pool
from drafterforge.assembly.runs import drafter_manifest
from drafterforge.config.commands import TrainPolicyConfig
from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.config.progress import Bar, bar, say
from drafterforge.config.replay import TracesConfig
from drafterforge.data.answering import DATE
from drafterforge.data.chat import prompt_ids
from drafterforge.data.prompts import interleave, load_prompts
from drafterforge.errors import ConfigError
from drafterforge.evaluation.timing import samplings
from drafterforge.replay.record import record_answer
from drafterforge.replay.trace import Traces, TraceSpec, join, load_shards, save_shard
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.sampling import Sampling
from drafterforge.runtime.shapes import choose_shape
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target

SOURCES = {"train": "val", "test": "test"}  # prompt split of each trace split; no drafter was trained on either
GIGABYTE = 1e9


class SplitPrompt(NamedTuple):
    """A prompt to record."""

    split: str  # train | test
    domain: str
    tokens: list[int]


def record_traces(cfg: TrainPolicyConfig, target: Target) -> tuple[Path, Traces]:
    """The configured traces artifact, recorded if there is none."""
    names = cfg.traces.drafters or [cfg.drafter]
    default = choose_shape(cfg.runtime, target.device, target.dtype)  # which policies are compared with
    top_ks = tuple(sorted({*cfg.grid.top_ks, cfg.traces.score_top_k, default.top_k}))
    depth = max(*cfg.grid.depths, default.depth)
    folders = [find_artifact(cfg.runs_dir, target.name, "drafters", name) for name in names]
    parents = [drafter_manifest(folder, target) for folder in folders]
    path = artifact_dir(cfg.runs_dir, target.name, "traces", cfg.traces.name or cfg.drafter)
    spec = reusable_spec(path, TraceSpec(tuple(names), top_ks, depth, cfg.traces.score_top_k))
    settings = {
        "traces": cfg.traces.recorded(),
        "recorded": spec.as_dict(),
        "drafters": [parent.as_parent() for parent in parents],
        "dtype": str(target.dtype),
        "seed": cfg.seed,
    }
    run = artifact_run(
        path, "traces", target, settings, parents, overwrite=cfg.overwrite, alternative="traces.name=OTHER"
    )
    if run.existing:
        return path, load_shards(path, spec)
    check_size(cfg.traces, spec, target, path, run.staging_dir)
    staging = run.stage()
    pool = Pool(open_pool(cfg.runs_dir, target, names), "static")
    roots, seconds = _record_shards(cfg, target, pool, spec, staging)
    metrics: dict[str, Any] = {}
    with run.write(metrics) as folder:
        for file in sorted(staging.glob("shard-*")):
            link_or_copy(file, folder / file.name)
        traces = load_shards(folder, spec)
        size = sum(file.stat().st_size for file in folder.iterdir())
        metrics |= {
            "device": describe_device(target.device),
            "answers": len(traces.tokens),
            "positions": traces.num_roots,
            "bytes_per_position": round(size / traces.num_roots, 1),
        }
        if roots == traces.num_roots:  # otherwise an interrupted run recorded some of them
            metrics["positions_per_s"] = round(roots / seconds, 1)
    rate = f", {metrics['positions_per_s']} a second" if "positions_per_s" in metrics else ""
    say(
        f"wrote {path}: {metrics['positions']} positions of {metrics['answers']} answers for {len(names)} drafters, "
        f"{metrics['bytes_per_position']:.0f} bytes each{rate}"
    )
    return path, traces


def check_size(traces: TracesConfig, spec: TraceSpec, target: Target, path: Path, staging: Path) -> None:
    """Say how large a recording may become, and refuse one beyond `traces.max_gb` or the free disk.

    staging: the folder of shards that an interrupted recording left.
    """
    num_features = len(target.backbone.taps) * target.backbone.embedding.shape[1]
    answers, each = traces.num_train + traces.num_test, spec.bytes_per_root(num_features)
    positions = answers * (traces.max_new_tokens - 1)
    size = positions * each / GIGABYTE
    text = (
        f"up to {size:.2f} GB: {answers} answers of at most {traces.max_new_tokens} tokens, {each} bytes for each of "
        f"{positions} positions"
    )
    if size > traces.max_gb:
        counts = fitting_counts(traces, traces.max_gb / size)
        raise ConfigError(
            f"the traces {path.name} would take {text}, but traces.max_gb={traces.max_gb:g}; "
            f"type traces.max_gb={math.ceil(size)}" + (f", or {counts}" if counts else "")
        )
    folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    staged = sum(file.stat().st_size for file in staging.glob("shard-*.safetensors"))
    free = (shutil.disk_usage(folder).free + staged) / GIGABYTE
    if size > free:
        counts = fitting_counts(traces, free / size)
        raise ConfigError(
            f"the traces {path.name} would take {text}, but {folder} has {free:.2f} GB left; "
            f"type {f'{counts}, or ' if counts else ''}runs_dir= on another disk"
        )
    say(f"recording {path}, {text}")


def fitting_counts(traces: TracesConfig, share: float) -> str:
    """What to type for traces of at most this share of the size; empty if no answer of each split fits.

    Training answers are left out before answers to measure on.
    """
    count = int((traces.num_train + traces.num_test) * share)
    if count > traces.num_test:
        return f"traces.num_train={count - traces.num_test}"
    num_test = min(max(int(traces.num_test * share), 1), count - 1)
    return f"traces.num_train={count - num_test} traces.num_test={num_test}" if num_test > 0 else ""


def _record_shards(
    cfg: TrainPolicyConfig, target: Target, pool: Pool, spec: TraceSpec, staging: Path
) -> tuple[int, float]:
    """Record the shards missing in `staging`; returns the recorded positions and the seconds."""
    prompts = draw_prompts(cfg.traces.domains, cfg.traces.num_train, cfg.traces.num_test, target, cfg.seed)
    size, roots, seconds = cfg.traces.shard_size, 0, 0.0
    with bar("recording traces", len(prompts)) as progress:
        for start in range(0, len(prompts), size):
            part, file = prompts[start : start + size], staging / f"shard-{start // size:05d}.safetensors"
            if not file.exists() or not file.with_suffix(".json").exists():
                began = time.perf_counter()
                draws = samplings(cfg.traces.temperature, cfg.seed + start, len(part))
                shard = record_shard(cfg.traces, target, pool, spec, part, draws, progress)
                save_shard(file, shard)
                seconds, roots = seconds + time.perf_counter() - began, roots + shard.num_roots
            progress.reach(start + len(part), f"{roots / max(seconds, 1e-9):.0f} positions/s")
    return roots, seconds


def reusable_spec(path: Path, required: TraceSpec) -> TraceSpec:
    """The spec of the traces at `path` if it covers the required one, so that a smaller grid reuses them."""
    if not is_complete(path):
        return required
    recorded = TraceSpec.of(open_artifact(path, "traces"))
    is_same = (recorded.drafters, recorded.score_top_k) == (required.drafters, required.score_top_k)
    covers = {*required.top_ks} <= {*recorded.top_ks} and required.depth <= recorded.depth
    return recorded if is_same and covers else required


def draw_prompts(domains: Sequence[str], num_train: int, num_test: int, target: Target, seed: int) -> list[SplitPrompt]:
    """Prompts of both splits, domains interleaved; no drafter was trained on their tasks."""
    counts = {"train": num_train, "test": num_test}
    num_each = {split: -(-count // len(domains)) for split, count in counts.items()}
    data = DataConfig(num_train=1, num_val=num_each["train"], num_test=num_each["test"])
    by_domain = [load_prompts(data, DomainConfig(name=name), seed) for name in domains]
    return [
        SplitPrompt(split, prompt.domain, prompt_ids(target.tokenizer, list(prompt.messages), date=DATE))
        for split, source in SOURCES.items()
        for prompt in interleave([splits[source] for splits in by_domain])[: counts[split]]
    ]


def policy_prompts(
    domains: Sequence[str], num_train: int, num_test: int, target: Target, seed: int
) -> dict[str, list[list[int]]]:
    """Token ids of the prompts of each split."""
    prompts = draw_prompts(domains, num_train, num_test, target, seed)
    return {split: [prompt.tokens for prompt in prompts if prompt.split == split] for split in SOURCES}


def record_shard(
    cfg: TracesConfig,
    target: Target,
    pool: Pool,
    spec: TraceSpec,
    prompts: Sequence[SplitPrompt],
    draws: Sequence[Sampling],
    progress: Bar,
) -> Traces:
    """Answer and record prompts; answers of one token have no cycle and are left out."""
    engine = Engine(target, max_batch=cfg.batch_size)
    answers = engine.generate([prompt.tokens for prompt in prompts], cfg.max_new_tokens, draws)
    pairs = [(answer, prompt) for answer, prompt in zip(answers, prompts, strict=True) if len(answer.tokens) > 1]
    traces = []
    for answer, _ in pairs:
        traces.append(record_answer(target, pool, answer, spec, max_new_tokens=cfg.max_new_tokens))
        progress.advance()
    return join(spec, traces, [prompt.domain for _, prompt in pairs], [prompt.split for _, prompt in pairs])
