"""Time the shipped pool, tune one expert on a few prompts, bundle it, and compare all of them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drafterforge import __version__
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.staging import drop_staging, open_staging
from drafterforge.assembly.pools import pool_names, retrieval_for
from drafterforge.assembly.runs import RunsFolder, drafter_manifest
from drafterforge.bundle.record import read_record
from drafterforge.config.commands import QuickstartConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.hints import target_flags
from drafterforge.config.names import JOINT, POOL, RETRIEVAL, parts_of
from drafterforge.config.pool import PoolConfig
from drafterforge.config.progress import say, table_console
from drafterforge.data.prompts import load_prompts
from drafterforge.evaluation.drafter_comparison import (
    compare_methods,
    comparison_config,
    held_out_requests,
    split_sizes,
)
from drafterforge.evaluation.load_warning import warn_if_busy
from drafterforge.evaluation.method_factory import BUNDLE
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.step_clock import StepClock
from drafterforge.pipelines.train_drafter import train
from drafterforge.reporting.artifact import require_lossless, write_report
from drafterforge.reporting.code_state import code_state
from drafterforge.reporting.console import print_noise, print_table
from drafterforge.reporting.drafter_verdict import drafter_verdict, pairing_of
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target, load_target
from drafterforge.training.inputs import existing_answers, find_answers
from drafterforge.training.loggers import settings_of
from drafterforge.training.parents import parents_of
from drafterforge.training.quickstart import bundle_expert, check_start, describe_training, training_figures

Config = QuickstartConfig
STEPS = ("open", "tune", "export", "evaluate")
FIRST = ("method", "num_prompts", "num_tokens", "mat", "tokens_per_s", "speedup", "speedup_ci95", "mismatches")


def run(cfg: Config) -> Path:
    began = time.perf_counter()
    check_start(cfg)
    prompts = None if cfg.answers else load_prompts(cfg.data, cfg.domain, cfg.seed)  # bad input fails at once
    warn_if_busy()
    target = load_target(cfg.target)
    say(f"target: {target.name}, {target.dtype} on {target.device}")
    runs, domain = RunsFolder(cfg.runs_dir, target), cfg.domain.answers_domain
    generalist, expert = parents_of(cfg, target)
    if prompts is not None:
        existing_answers(cfg, target, prompts)  # those of other settings fail before anything is timed
    names = [name for name in pool_names(runs, cfg.pool.drafters) if name != cfg.name]
    recorded_answers = find_answers(cfg, target) if prompts is None else None
    requests = held_out_requests(cfg, target, prompts, recorded_answers)
    path = artifact_dir(cfg.runs_dir, target.name, "reports", cfg.name)
    staging = open_measurements(cfg, target, path, names, requests)
    clock = StepClock("quickstart", STEPS, staging / "seconds.json", began)

    with_files = [runs.summary(name) for name in parts_of(names) if name != RETRIEVAL]
    retrieval = retrieval_for(with_files, cfg.domain.name)
    first = show_pool(cfg, target, names, retrieval, requests, staging)
    clock.done("open", f"opened the pool {', '.join(names)}, and timed it beside plain decoding")

    answers = recorded_answers or find_answers(cfg, target, prompts)
    manifest = drafter_manifest(train(cfg, target, answers), target)
    training = training_figures(answers.rows("train", domain), manifest)
    clock.done("tune", f"{describe_training(cfg, training)}; {split_sizes(cfg, answers, len(requests))}")

    bundle = bundle_expert(cfg, retrieval, replaced=cfg.drafter.init if expert else "")
    clock.done("export", f"{bundle} has {cfg.name}" + (f" in place of {cfg.drafter.init}" if expert else " besides"))

    alone = [parent.manifest.name for parent in (generalist, expert) if parent] + [cfg.name]
    hybrids = [f"{name}{JOINT}{retrieval}" for name in alone[-2:]]  # of what was tuned, and of the result
    methods = [*alone, *hybrids, BUNDLE]
    pool = PoolConfig(drafters=[*alone, *([retrieval] if retrieval != RETRIEVAL else [])])
    comparison = comparison_config(cfg, pool, methods, cfg.eval.max_new_tokens)
    parts_dir = staging / f"last-{read_record(bundle).digest[:16]}"
    results = compare_methods(comparison, target, requests[: cfg.eval.num_prompts], parts_dir, bundle)
    clock.done("evaluate", f"{', '.join(alone)} and the bundle were timed beside plain decoding")

    times = {"seconds": clock.seconds, "total_s": clock.total, "first": first}
    report, file = write_report(
        cfg.runs_dir,
        target,
        path.name,
        suite=f"quickstart, {cfg.domain.name}, held out",
        seed=cfg.seed,
        numerics=cfg.runtime.numerics,
        rows=results.rows,
        curves=results.curves | {"quickstart": times | training},
        config=settings(cfg) | {"drafter": to_dict(cfg.drafter), "trainer": settings_of(cfg.trainer)},
        parents=[*(runs.manifest(name) for name in alone), *answers.manifests],
        measurements=results.measurements,
    )
    drop_staging(path)
    print_table(report, table_console())
    print(drafter_verdict(report, cfg.name))
    print_noise(report)
    pairing = pairing_of(report, cfg.name)
    bundled = f"bundle={cfg.name}" if pairing is None or pairing.better else ""
    if not bundled:
        print(f"the bundle {bundle} has {cfg.name} all the same, as an example; without bundle= the default decodes")
    command = f"drafterforge generate {bundled}".rstrip() + target_flags(cfg)
    print(f'wrote {file} after {clock.total / 60:.1f} min; next: {command} prompt="..."')
    require_lossless(report, file)
    return file


def settings(cfg: Config) -> dict[str, Any]:
    """The settings that decide the figures before tuning."""
    parts = {key: to_dict(getattr(cfg, key)) for key in ("data", "eval", "pool", "runtime")}
    parts["pool"]["selector"] = cfg.pool.selector_name
    first = {"num_prompts": cfg.first_prompts, "max_new_tokens": cfg.first_tokens}
    return parts | {"first": first, "domain": cfg.domain.name, "seed": cfg.seed}


def open_measurements(cfg: Config, target: Target, path: Path, names: list[str], requests: Sequence[Request]) -> Path:
    """The folder of finished measurements; without `overwrite`, ArtifactError if it has some of other settings."""
    runs = RunsFolder(cfg.runs_dir, target)
    identity = settings(cfg) | {
        "drafterforge": __version__,
        "code": code_state(),
        "target": target.fingerprint,
        "dtype": str(target.dtype),
        "device": describe_device(target.device),
        "drafters": [runs.manifest(name).as_parent() for name in parts_of(names) if name != RETRIEVAL],
        "prompts": hashlib.sha256(json.dumps([request.tokens for request in requests]).encode()).hexdigest(),
    }
    if cfg.overwrite:
        drop_staging(path)
    return open_staging(path, identity, replace=cfg.overwrite)


def show_pool(
    cfg: Config, target: Target, names: list[str], retrieval: str, requests: Sequence[Request], staging: Path
) -> list[dict[str, Any]]:
    """Print and return the rows of plain decoding, of the shipped pool, and of its expert with retrieval."""
    hybrid = [f"{cfg.drafter.init}{JOINT}{retrieval}"] if cfg.drafter.init in names else []
    comparison = comparison_config(cfg, replace(cfg.pool, drafters=names), [POOL, *hybrid], cfg.first_tokens)
    rows = compare_methods(comparison, target, requests[: cfg.first_prompts], staging / "first").rows
    header = {"suite": f"{cfg.domain.name}, before tuning", "target": {"name": target.name}}
    print_table(header | {"device": describe_device(target.device), "rows": rows}, table_console())
    return [{key: row[key] for key in FIRST} for row in rows]
