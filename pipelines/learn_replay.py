"""Replay a log of requests with and without learning from it, and report what learning brings."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

from drafterforge.artifacts.learned import (
    JOINED,
    LEFT,
    LearnedRecord,
    delete_learned,
    learned_drafters,
    update_record,
)
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.manifest import Manifest, canonical_json
from drafterforge.artifacts.staging import drop_staging, open_staging, staging_folder
from drafterforge.assembly.runs import RunsFolder
from drafterforge.config.compose import to_dict
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.learn import LearnCommandConfig
from drafterforge.config.progress import bar, say, table_console
from drafterforge.data.answering import DATE
from drafterforge.data.chat import prompt_ids
from drafterforge.data.sources import jsonl_rows
from drafterforge.errors import ConfigError
from drafterforge.evaluation.held_out import held_out_prompts
from drafterforge.evaluation.resume_cache import ResumeCache
from drafterforge.evaluation.rows import ALL_REQUESTS, OLD_PROMPTS
from drafterforge.evaluation.traffic_replay import (
    TrafficReplay,
    gains_over_plain,
    replay_curves,
    replay_rows,
    require_no_traffic,
)
from drafterforge.evaluation.traffic_resume import delete_interrupted, load_replay, measurements_of, save_replay
from drafterforge.pipelines.learn import describe
from drafterforge.pipelines.train_drafter import train
from drafterforge.reporting.artifact import require_lossless, write_report
from drafterforge.reporting.code_state import code_state
from drafterforge.reporting.console import print_table
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target, load_target

Config = LearnCommandConfig


def run(cfg: Config) -> Path:
    rows = [*jsonl_rows(cfg.path)][: cfg.limit or None]
    by_seed = [seeded(cfg, seed) for seed in (cfg.seed, *cfg.seeds)]
    output = artifact_dir(cfg.runs_dir, cfg.target.folder_name, "reports", cfg.output_name)
    if not staging_folder(output).exists():
        for settings in by_seed:
            require_no_traffic(settings)
    target = load_target(cfg.target)
    room = target.max_positions - cfg.max_new_tokens
    read = [(row.domain, prompt_ids(target.tokenizer, list(row.messages), date=DATE)) for row in rows]
    read = [(domain, prompt) for domain, prompt in read if len(prompt) <= room]
    if not read:
        raise ConfigError(
            f"no request of {cfg.path} leaves room for max_new_tokens={cfg.max_new_tokens}; type a smaller one"
        )
    if left_out := len(rows) - len(read):
        say(f"{left_out} of {len(rows)} requests leave no room for max_new_tokens={cfg.max_new_tokens}: left out")
    domains, prompts = zip(*read, strict=True)
    old_prompts = held_out_prompts(target, cfg.old_prompts, POOL_DOMAINS) if cfg.old_prompts else []
    seeds = [settings.seed for settings in by_seed]
    cache, replays = open_cache(cfg, target, output, prompts), []
    with bar("replaying requests", len(seeds) * (len(prompts) + len(old_prompts))) as progress:
        for settings in by_seed:
            if replays:  # the next one learns from nothing
                forget(by_seed[len(replays) - 1])
            if (traffic := load_replay(cache, settings.seed, [*prompts, *old_prompts])) is None:
                replay = open_replay(settings, target, cache)
                traffic = replay.run(prompts, old_prompts, lambda: progress.advance(1))
                save_replay(cache, traffic)
            else:
                progress.advance(len(prompts) + len(old_prompts))
            replays.append(traffic)
    count, parts = len(prompts), parts_of(domains, len(old_prompts))
    gains_by_seed = {title: gains_over_plain(replays, part) for title, part in parts.items()}
    numerics = choose_numerics("auto", target)
    report, path = write_report(
        cfg.runs_dir,
        target,
        cfg.output_name,
        suite="replayed traffic",
        seed=cfg.seed,
        numerics=numerics,
        rows=replay_rows(replays, parts, str(target.dtype).removeprefix("torch."), numerics),
        curves=replay_curves(replays, count) | {"gains_by_seed": gains_by_seed},
        config={
            "learn": to_dict(cfg.learn),
            "max_new_tokens": cfg.max_new_tokens,
            "requests": len(prompts),
            "retrieval": cfg.retrieval,
            "seeds": seeds,
        },
        parents=[],
        measurements=[measurement for traffic in replays for measurement in measurements_of(traffic)],
    )
    drop_staging(output)
    print_table(report, table_console())
    for traffic in replays:
        for number, version in traffic.learned:
            print(f"seed {traffic.seed}, after {number} requests: {describe(version)}")
    for title, by_name in gains_by_seed.items():
        print(f"{title}, tokens/s over those without learning:")
        for name, gains in by_name.items():
            spread = f" ({min(gains):.3f}x to {max(gains):.3f}x with {len(seeds)} seeds)" if len(seeds) > 1 else ""
            print(f"  {fmean(gains):.3f}x with {name}{spread}")
    print(f"wrote {path}")
    require_lossless(report, path)
    return path


def open_cache(cfg: Config, target: Target, output: Path, prompts: Sequence[list[int]]) -> ResumeCache:
    """The replays with single seeds that an interrupted command has finished.

    ArtifactError if they had other settings, drafters or code.
    """
    runs = RunsFolder(cfg.runs_dir, target, quiet=True)
    learned = learned_drafters(cfg.runs_dir, target.name)
    drafters = [runs.find(name) for name in sorted({*runs.names()} - learned)]
    router = runs.default_router()
    settings = {
        "learn": asdict(cfg.learn),
        "max_new_tokens": cfg.max_new_tokens,
        "old_prompts": cfg.old_prompts,
        "retrieval": cfg.retrieval,
        "seeds": [cfg.seed, *cfg.seeds],
        "prompts": hashlib.sha256(canonical_json(prompts)).hexdigest(),
        "target": target.fingerprint,
        "dtype": str(target.dtype),
        "device": describe_device(target.device),
        "drafters": [Manifest.read(folder).as_parent() for folder in [*drafters, *([router] if router else [])]],
        "code": code_state(),
    }
    alternative = "name=OTHER runs_dir=OTHER"
    return ResumeCache(open_staging(output, settings, replace=False, alternative=alternative, overwrites=False))


def open_replay(cfg: Config, target: Target, cache: ResumeCache) -> TrafficReplay:
    """A replay from the first request on; ConfigError if there is traffic that no interrupted replay has left."""
    begun = f"begun-{cfg.seed}"
    if facts := cache.facts(begun):
        delete_interrupted(cfg, facts["run"])
    require_no_traffic(cfg)
    cache.save_facts(begun, {"run": ""})
    replay = TrafficReplay(cfg, target, train)
    cache.save_facts(begun, {"run": replay.log.run})
    return replay


def forget(cfg: Config) -> None:
    """Delete the experts that a replay has learned; its record says that they have left."""

    def leave(record: LearnedRecord) -> LearnedRecord:
        for version in record.of_state(JOINED):
            record = record.with_state(version.name, LEFT)
        return record

    record = update_record(cfg.traffic_dir, leave)
    delete_learned(cfg.runs_dir, cfg.target.folder_name, [version.name for version in record.versions])


def parts_of(domains: Sequence[str], num_old: int) -> dict[str, Sequence[int]]:
    """Places of the requests that the report has rows of: all, the last, each domain of the log, and the old ones.

    domains: of the log's requests.
    """
    count = len(domains)
    last = min(100, max(count // 3, 1))
    parts: dict[str, Sequence[int]] = {
        ALL_REQUESTS: range(count),
        f"last {last} requests": range(count - last, count),
    }
    if len(set(domains)) > 1:
        for domain in dict.fromkeys(domains):
            parts[f"requests of {domain or 'no domain'}"] = [
                number for number, name in enumerate(domains) if name == domain
            ]
    return parts | ({OLD_PROMPTS: range(count, count + num_old)} if num_old else {})


def seeded(cfg: Config, seed: int) -> Config:
    """The settings of one seed; a further one has a folder of recorded answers of its own."""
    if seed == cfg.seed:
        return cfg
    folder = f"{cfg.traffic_dir}-seed{seed}"
    return replace(cfg, seed=seed, seeds=[], learn=replace(cfg.learn, folder=folder))
