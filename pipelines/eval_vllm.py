"""Evaluate a pool in vLLM: servers with the pool, with single drafters and with none, timed over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from drafterforge import __version__
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.staging import drop_staging, open_staging, staging_folder
from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.hints import target_flags, typed_settings
from drafterforge.evaluation.load_warning import warn_if_busy
from drafterforge.evaluation.machine_load import load_by_session
from drafterforge.evaluation.resume_cache import ResumeCache
from drafterforge.evaluation.rows import per_request, timed_rows
from drafterforge.evaluation.scaling import scaling_curves
from drafterforge.evaluation.served_target import open_served_target
from drafterforge.evaluation.suite_checks import check_suite
from drafterforge.evaluation.suites import Suite, prompts_identity, suite_questions
from drafterforge.evaluation.vllm_methods import ServedMethods, serve_commands
from drafterforge.evaluation.vllm_server import find_command, installed_version
from drafterforge.evaluation.vllm_timing import ServerGroup, VllmTiming, request_groups, served_mismatches
from drafterforge.reporting.artifact import PAGE, require_lossless, write_report
from drafterforge.reporting.code_state import code_state
from drafterforge.reporting.console import print_report, print_verdict
from drafterforge.targets.device import choose_device, describe_device

PLACES = ("vllm_command", "ports", "start_s", "openvino")  # settings that decide no figure


def run(cfg: EvaluateConfig) -> Path:
    """Export the drafters, start the servers, send the suite's prompts to all in turns, and write the report."""
    check_suite(cfg)
    questions = suite_questions(cfg)
    prompts = prompts_identity(cfg, questions)
    warn_if_busy()
    command = find_command(cfg.suite.vllm_command)
    target = open_served_target(cfg, command)
    path = artifact_dir(cfg.runs_dir, target.name, "reports", cfg.name or cfg.suite.name)
    served = ServedMethods(cfg, target, command, staging_folder(path))
    methods = served.build()
    sources = {"target": target.fingerprint, "drafters": served.identities, "command": str(command)}
    sources |= {"vllm": installed_version(command)}
    sources |= {"device": describe_device(choose_device("auto")), "questions": prompts["questions"]}
    cache = open_cache(cfg, path, sources)

    with ServerGroup(methods, cfg.suite.together, cfg.suite.start_s) as servers:
        suite = Suite(cfg, target, cache, questions, engine=servers)
        requests = suite.requests()
        groups = request_groups(cfg.suite, cfg.seed, suite.timed_indices(requests), len(requests))
        timing = VllmTiming(servers, requests, cache)
        measurements = timing.measure(groups, cfg.suite.rounds)
        mismatches = served_mismatches(servers, requests, measurements)

    rows = timed_rows(measurements, mismatches, {})
    for row in rows:
        if row["temperature"] > 0:  # vLLM's noise depends on the drafted tokens, so that its text may differ
            row["mismatches"] = None
    curves = {
        "mismatches": mismatches,
        "per_request": per_request(measurements),
        "machine": load_by_session(measurements, torch.get_num_threads()),
        "drafters": timing.counters,
        "commands": serve_commands(methods),
        "prompts": prompts,
        "again": f"drafterforge eval {typed_settings(cfg)}{target_flags(cfg)} name={path.name}-again",
        "scaling": scaling_curves(rows, {}),
    }
    report, file = write_report(
        cfg.runs_dir,
        target,
        path.name,
        suite=cfg.suite.name,
        seed=cfg.seed,
        numerics="fast",
        rows=rows,
        curves=curves,
        config=settings_of(cfg),
        parents=(),
        measurements=measurements,
        device=target.describe_device(timing.version),
        logs=[log for log in servers.logs if log.is_file()],
    )
    drop_staging(path)
    print_report(report, "")
    print_verdict(report)
    print(f"wrote {file.with_name(PAGE)} and {file.name}")
    require_lossless(report, file)
    return file.parent


def settings_of(cfg: EvaluateConfig) -> dict[str, Any]:
    """The settings that decide the figures."""
    suite = {key: value for key, value in to_dict(cfg.suite).items() if key not in PLACES}
    return {"suite": suite, "dtype": cfg.target.dtype, "bundle": cfg.bundle, "seed": cfg.seed}


def open_cache(cfg: EvaluateConfig, path: Path, sources: dict[str, Any]) -> ResumeCache:
    """The cache of finished rounds; without `overwrite`, ArtifactError if it has rounds of other settings or sources.

    A run whose servers did not start has left only their logs, which need no protection.
    """
    if cfg.overwrite:
        drop_staging(path)
    is_empty = not any(staging_folder(path).glob("*.parquet"))
    settings = settings_of(cfg) | {"drafterforge": __version__, "code": code_state()}
    return ResumeCache(open_staging(path, settings | sources, replace=cfg.overwrite or is_empty))
