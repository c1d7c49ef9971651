"""Evaluate a pool on a suite: drafters by domain, selectors, speed, losslessness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from drafterforge import __version__
from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.locate import artifact_dir, find_artifact
from drafterforge.artifacts.manifest import Manifest
from drafterforge.artifacts.staging import drop_staging, open_staging
from drafterforge.assembly.pools import build_pool
from drafterforge.assembly.runs import RunsFolder, drafter_manifest
from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.evaluation import VLLM
from drafterforge.config.hints import target_flags, typed_settings
from drafterforge.config.names import RETRIEVAL, parse_tree, parts_of
from drafterforge.evaluation.auto_comparison import compare_auto
from drafterforge.evaluation.auto_replay import replay_auto
from drafterforge.evaluation.live_check import compare_live_with_replay
from drafterforge.evaluation.load_warning import warn_if_busy
from drafterforge.evaluation.machine_load import load_by_session
from drafterforge.evaluation.method_factory import STATIC, MethodFactory
from drafterforge.evaluation.methods import commands_of
from drafterforge.evaluation.mismatches import settle_mismatches
from drafterforge.evaluation.resume_cache import ResumeCache
from drafterforge.evaluation.rows import per_request, timed_rows
from drafterforge.evaluation.scaling import scaling_curves, time_along_axes, time_cells
from drafterforge.evaluation.selector_replay import SelectorReplay
from drafterforge.evaluation.suite_checks import check_methods, check_suite, report_missing_experts
from drafterforge.evaluation.suites import STREAMS, Suite, prompts_identity, suite_questions, with_limit
from drafterforge.evaluation.timing import TimingRun, time_methods
from drafterforge.pipelines import eval_vllm
from drafterforge.reporting.artifact import PAGE, compare_saved, require_lossless, write_report
from drafterforge.reporting.code_state import code_state
from drafterforge.reporting.console import print_report, print_verdict
from drafterforge.runtime.pool import Pool
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target, load_target

Config = EvaluateConfig


def run(cfg: Config) -> Path:
    """Answer the suite's prompts, replay the selectors on the answers, time the methods, and write the report."""
    if cfg.compare:
        return compare_saved(cfg.compare, cfg.runs_dir, cfg.target.folder_name)
    cfg = with_limit(cfg)
    if cfg.suite.name == VLLM:
        return eval_vllm.run(cfg)
    check_suite(cfg)
    questions = suite_questions(cfg)
    prompts = prompts_identity(cfg, questions)
    warn_if_busy()
    target = load_target(cfg.target)
    pool, shape = build_pool(cfg.pool, cfg.runtime, RunsFolder(cfg.runs_dir, target), cfg.seed)
    check_methods(cfg.suite.all_methods, pool.names)
    drafters, policies = drafter_manifests(cfg, target, pool), policy_manifests(cfg, target)
    path = artifact_dir(cfg.runs_dir, target.name, "reports", cfg.name or cfg.suite.name)
    suite = Suite(cfg, target, open_cache(cfg, target, path, drafters, policies, prompts), questions)
    factory = MethodFactory(cfg, target, pool, shape)
    factory.check(cfg.suite.all_methods if cfg.suite.timed_prompts else ())

    requests = suite.requests()
    answers = suite.answers(requests, "answering", "answers") if cfg.suite.replay else []
    replay = SelectorReplay(suite, factory, requests, answers) if cfg.suite.replay else None
    replayed_rows, curves = (replay.rows(), replay.curves()) if replay else ([], {})
    if replay and cfg.suite.check_live:
        curves["live"] = compare_live_with_replay(replay)

    indices = suite.timed_indices(requests)
    report_missing_experts(cfg, pool, [requests[index] for index in indices])
    timing = TimingRun(cfg.suite.max_new_tokens, cfg.seed, temperature=cfg.suite.temperature)
    names = cfg.suite.sampling_methods if cfg.suite.temperature else cfg.suite.methods
    methods = factory.build(names) if indices else []
    timings = time_methods(timing, methods, requests, indices, suite.cache)
    if cfg.suite.name == "scaling":
        scaled_timings, requests = time_along_axes(suite, factory, requests, indices)
        timings += scaled_timings
    if cfg.suite.name == "auto":
        cell_timings, requests = time_cells(suite, factory, requests)
        timings += cell_timings
        curves["auto"] = compare_auto(timings, cfg.suite.warm_up_prompts)
        curves["auto"]["replay"] = replay_auto(factory, requests, timings)
    curves["mismatches"] = settle_mismatches(cfg, factory, requests, timings)
    curves["per_request"] = per_request(timings)
    curves["machine"] = load_by_session(timings, torch.get_num_threads())
    curves["commands"] = commands_of(cfg, methods)
    curves["prompts"] = prompts
    again = replace(cfg, suite=replace(cfg.suite, replay=cfg.suite.replay and not indices))
    curves["again"] = f"drafterforge eval {typed_settings(again)}{target_flags(cfg)} name={path.name}-again"
    best_cycles = replay.best_cycles() if replay else {}
    rows = timed_rows(timings, curves["mismatches"], best_cycles, by_domain=cfg.suite.name not in STREAMS)
    rows += replayed_rows
    curves["scaling"] = scaling_curves([] if "auto" in curves else rows, curves.get("scaling", {}))

    report, file = write_report(
        cfg.runs_dir,
        target,
        path.name,
        suite=cfg.suite.name,
        seed=cfg.seed,
        numerics=cfg.runtime.numerics,
        rows=rows,
        curves=curves,
        config=settings_of(cfg),
        parents=[*drafters, *policies],
        measurements=timings + (replay.measurements() if replay else []),
    )
    drop_staging(path)
    print_report(report, cfg.pool.selector_name)
    print_verdict(report)
    print(f"wrote {file.with_name(PAGE)} and {file.name}")
    require_lossless(report, file)
    return file.parent


def settings_of(cfg: Config) -> dict[str, Any]:
    """The settings that decide the figures."""
    parts = {key: to_dict(getattr(cfg, key)) for key in ("suite", "pool", "runtime")}
    parts["pool"]["selector"] = cfg.pool.selector_name
    del parts["suite"]["openvino"]  # a folder; it decides no figure
    return parts | {"seed": cfg.seed}


def drafter_manifests(cfg: Config, target: Target, pool: Pool) -> list[Manifest]:
    """Manifests of the drafters in the pool."""
    trained = [name for name in parts_of(pool.names) if name != RETRIEVAL]
    folders = [find_artifact(cfg.runs_dir, target.name, "drafters", name) for name in trained]
    return [drafter_manifest(folder, target) for folder in folders]


def policy_manifests(cfg: Config, target: Target) -> list[Manifest]:
    """Manifests of the policies and the router that the methods use."""
    in_methods = [name.partition("/")[2] for name in cfg.suite.all_methods]
    names = dict.fromkeys([cfg.pool.scheduler, cfg.pool.router, *cfg.suite.schedulers, *in_methods])
    stored = [name for name in names if name not in ("", STATIC) and not parse_tree(name)]
    folders = [find_artifact(cfg.runs_dir, target.name, "policies", name) for name in stored]
    return [open_artifact(folder, "policies", target_fingerprint=target.fingerprint) for folder in folders]


def open_cache(
    cfg: Config,
    target: Target,
    path: Path,
    drafters: Sequence[Manifest],
    policies: Sequence[Manifest],
    prompts: Mapping[str, Any],
) -> ResumeCache:
    """The cache of finished parts; without `overwrite`, ArtifactError if it has parts of other settings or drafters.

    prompts: see `prompts_identity`.
    """
    settings = settings_of(cfg) | {
        "drafterforge": __version__,
        "code": code_state(),
        "target": target.fingerprint,
        "forward": cfg.target.forward,
        "openvino": cfg.suite.openvino,
        "dtype": str(target.dtype),
        "device": describe_device(target.device),
        "drafters": [drafter.as_parent() for drafter in drafters],
        "policies": [policy.as_parent() for policy in policies],
        "questions": prompts["questions"],
    }
    if cfg.overwrite:
        drop_staging(path)
    return ResumeCache(open_staging(path, settings, replace=cfg.overwrite))
