"""Records what every drafter would do at every position of held-out answers, in resumable shards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from drafterforge.artifacts.folder import is_whole, open_artifact, reuse_artifact, write_artifact
from drafterforge.artifacts.locate import artifact_dir, find_artifact
from drafterforge.artifacts.staging import drop_staging, open_staging
from drafterforge.assembly.pools import open_pool
from drafterforge.assembly.runs import open_drafter
from drafterforge.config.compose import to_dict
from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.config.progress import bar, say
from drafterforge.config.replay import GridConfig, TracesConfig
from drafterforge.data.chat import prompt_ids
from drafterforge.data.prompts import interleave, load_prompts
from drafterforge.replay.record import record_answer
from drafterforge.replay.trace import Traces, TraceSpec, join, load_shards, save_shard
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target

PLACES = {"train": "val", "test": "test"}  # tasks no drafter learned from, and tasks nobody looked at


def traces_of(
    cfg: TracesConfig, grid: GridConfig, drafter: str, runs_dir: str, target: Target, seed: int, overwrite: bool
) -> tuple[Path, Traces]:
    """The traces that are configured, recorded if they are not there; drafter: the policy's."""
    names = cfg.drafters or [drafter]
    top_ks = tuple(sorted({*grid.top_ks, cfg.told_top_k}))
    recorded = TraceSpec(tuple(names), top_ks, max(grid.depths), cfg.told_top_k)
    folders = [find_artifact(runs_dir, target.name, "drafters", name) for name in names]
    parents = [open_drafter(folder, target) for folder in folders]
    path = artifact_dir(runs_dir, target.name, "traces", cfg.name or drafter)
    recorded = wider(path, recorded)
    settings = {
        "traces": to_dict(cfg),
        "recorded": recorded.as_dict(),
        "drafters": [parent.as_parent() for parent in parents],
        "dtype": str(target.dtype),
        "seed": seed,
    }
    known = reuse_artifact(
        path,
        "traces",
        config=settings,
        target=target.name,
        target_fingerprint=target.fingerprint,
        overwrite=overwrite,
        name_key="traces.name",
    )
    if known is not None:
        return path, load_shards(path, recorded)
    pool = Pool(open_pool(runs_dir, target, names), "static")
    metrics = {}
    staging = open_staging(path, settings | {"target": target.fingerprint})
    work = shards(cfg, target, seed)
    seconds, roots = 0.0, 0
    with bar("recording traces", sum(len(part) for part in work.values())) as progress:
        for shard, part in work.items():
            file = staging / f"{shard}.safetensors"
            if not file.exists() or not file.with_suffix(".json").exists():
                began = time.perf_counter()
                found = recorded_shard(cfg, target, pool, recorded, part)
                save_shard(file, found)
                seconds, roots = seconds + time.perf_counter() - began, roots + found.num_roots
            progress.advance(len(part), f"{roots / max(seconds, 1e-9):.0f} positions/s")
    with write_artifact(
        path,
        kind="traces",
        name=path.name,
        target=target.name,
        target_fingerprint=target.fingerprint,
        config=settings,
        parents=parents,
        metrics=metrics,
        replace=overwrite,
    ) as folder:
        for file in sorted(staging.glob("shard-*")):
            (folder / file.name).hardlink_to(file)
        traces = load_shards(folder, recorded)
        size = sum(file.stat().st_size for file in folder.iterdir())
        metrics |= {
            "device": describe_device(target.device),
            "answers": len(traces.tokens),
            "positions": traces.num_roots,
            "bytes_per_position": round(size / traces.num_roots, 1),
        }
        if roots == traces.num_roots:  # otherwise some were made in a run that was interrupted
            metrics["positions_per_s"] = round(roots / seconds, 1)
    drop_staging(path)
    rate = f", {metrics['positions_per_s']} a second" if "positions_per_s" in metrics else ""
    say(
        f"wrote {path}: {metrics['positions']} positions of {metrics['answers']} answers for {len(names)} drafters, "
        f"{metrics['bytes_per_position']:.0f} bytes each{rate}"
    )
    return path, traces


def wider(path: Path, wanted: TraceSpec) -> TraceSpec:
    """What is recorded already, if it holds all that is wanted and more: a smaller grid needs no recording anew."""
    if not is_whole(path):
        return wanted
    found = TraceSpec.of(open_artifact(path, "traces"))
    same = (found.drafters, found.score_top_k) == (wanted.drafters, wanted.score_top_k)
    return found if same and {*wanted.top_ks} <= {*found.top_ks} and wanted.depth <= found.depth else wanted


def shards(cfg: TracesConfig, target: Target, seed: int) -> dict[str, list[tuple[str, str, list[int]]]]:
    """Prompts as (split, domain, token ids), domains in turn, in shards."""
    found = drawn(cfg.domains, cfg.num_train, cfg.num_test, target, seed)
    size = cfg.shard_size
    return {f"shard-{at // size:05d}": found[at : at + size] for at in range(0, len(found), size)}


def drawn(
    domains: Sequence[str], num_train: int, num_test: int, target: Target, seed: int
) -> list[tuple[str, str, list[int]]]:
    """Prompts as (split, domain, token ids), domains in turn; `train` are of tasks that no drafter learned from."""
    counts = {"train": num_train, "test": num_test}
    each = {split: -(-count // len(domains)) for split, count in counts.items()}
    data = DataConfig(num_train=1, num_val=each["train"], num_test=each["test"])
    by_domain = [load_prompts(data, DomainConfig(name=name), seed) for name in domains]
    found: list[tuple[str, str, list[int]]] = []
    for split, place in PLACES.items():
        for prompt in interleave([splits[place] for splits in by_domain])[: counts[split]]:
            found.append((split, prompt.domain, prompt_ids(target.tokenizer, list(prompt.messages))))
    return found


def policy_prompts(
    domains: Sequence[str], num_train: int, num_test: int, target: Target, seed: int
) -> dict[str, list[list[int]]]:
    """Token ids of the prompts of each split."""
    found = drawn(domains, num_train, num_test, target, seed)
    return {split: [ids for own, _, ids in found if own == split] for split in PLACES}


def recorded_shard(
    cfg: TracesConfig, target: Target, pool: Pool, spec: TraceSpec, part: Sequence[tuple[str, str, list[int]]]
) -> Traces:
    """Answer and record some prompts; answers of one token take no cycle and are left out."""
    answers = Engine(target, max_batch=cfg.batch_size).generate([ids for *_, ids in part], cfg.max_new_tokens)
    kept = [(answer, one) for answer, one in zip(answers, part, strict=True) if len(answer.tokens) > 1]
    traces = [record_answer(target, pool, answer, spec, max_new_tokens=cfg.max_new_tokens) for answer, _ in kept]
    return join(spec, traces, [domain for _, (_, domain, _) in kept], [split for _, (split, _, _) in kept])
