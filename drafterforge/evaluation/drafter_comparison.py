"""A trained drafter beside plain decoding and the drafters that it could replace, on the same held-out prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from drafterforge.assembly.pools import GENERAL, build_pool, retrieval_of
from drafterforge.assembly.runs import RunsFolder
from drafterforge.config.commands import EvaluateConfig, QuickstartConfig, TrainDrafterConfig
from drafterforge.config.evaluation import SuiteConfig
from drafterforge.config.names import JOINT
from drafterforge.config.pool import PoolConfig
from drafterforge.data.answering import user_turns
from drafterforge.data.chat import prompt_ids
from drafterforge.data.joined import JoinedAnswers
from drafterforge.data.prompts import Prompt
from drafterforge.drafters.hybrid.kind import can_combine
from drafterforge.errors import ConfigError
from drafterforge.evaluation.machine_load import machine_of
from drafterforge.evaluation.measurements import Measurement
from drafterforge.evaluation.method_factory import MethodFactory
from drafterforge.evaluation.methods import commands_of
from drafterforge.evaluation.mismatches import settle_mismatches
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.resume_cache import ResumeCache
from drafterforge.evaluation.rows import per_request, timed_rows
from drafterforge.evaluation.timing import TimingRun, time_methods
from drafterforge.targets.load import Target


@dataclass(frozen=True)
class DrafterComparison:
    """What was measured, as `write_report` takes it."""

    rows: list[dict[str, Any]]
    curves: dict[str, Any]
    measurements: list[Measurement]


def compare_methods(
    cfg: EvaluateConfig, target: Target, requests: Sequence[Request], folder: Path, bundle: Path | None = None
) -> DrafterComparison:
    """Time the configured methods on the requests, taking turns; parts that are in `folder` are not measured again."""
    folder.mkdir(exist_ok=True)
    pool, shape = build_pool(cfg.pool, cfg.runtime, RunsFolder(cfg.runs_dir, target), cfg.seed)
    factory = MethodFactory(cfg, target, pool, shape, bundle)
    methods = factory.build(cfg.suite.methods)
    run = TimingRun(cfg.suite.max_new_tokens, cfg.seed)
    measurements = time_methods(run, methods, requests, range(len(requests)), ResumeCache(folder))
    mismatches = settle_mismatches(cfg, factory, requests, measurements)
    curves = {
        "mismatches": mismatches,
        "per_request": per_request(measurements),
        "machine": machine_of(measurements, torch.get_num_threads()),
        "commands": commands_of(cfg, methods),
    }
    return DrafterComparison(timed_rows(measurements, mismatches, {}, by_domain=False), curves, measurements)


def comparison_config(
    cfg: TrainDrafterConfig, pool: PoolConfig, methods: Sequence[str], max_new_tokens: int
) -> EvaluateConfig:
    """As `eval` would be asked for it."""
    return EvaluateConfig(
        target=cfg.target,
        suite=SuiteConfig(domains=[cfg.domain.name], methods=[*methods], max_new_tokens=max_new_tokens),
        pool=pool,
        runtime=cfg.runtime,
        runs_dir=cfg.runs_dir,
        seed=cfg.seed,
    )


def held_out_requests(
    cfg: QuickstartConfig, target: Target, prompts: Mapping[str, Sequence[Prompt]] | None, answers: JoinedAnswers | None
) -> list[Request]:
    """Test prompts that the target can read; of given answers if there are no prompts."""
    if answers is not None:
        asked = [row.input_ids[: row.prompt_tokens] for row in answers.rows("test", cfg.domain.alone)]
    else:
        asked = [prompt_ids(target.tokenizer, user_turns(prompt.messages)[0]) for prompt in prompts["test"]]
    most = min(cfg.data.max_prompt_tokens, target.max_positions - max(cfg.first_tokens, cfg.eval.max_new_tokens))
    if not (fitting := [Request(tokens, cfg.domain.name) for tokens in asked if len(tokens) <= most]):
        raise ConfigError(f"all {len(asked)} held-out prompts are longer than {most} tokens; give shorter ones")
    return fitting[: max(cfg.first_prompts, cfg.eval.num_prompts)]


def split_sizes(cfg: TrainDrafterConfig, answers: JoinedAnswers, num_tested: int) -> str:
    """How many prompts there are of each split, in words, and how many were asked for where there are fewer."""
    train, val = (len(answers.rows(split, cfg.domain.alone)) for split in ("train", "val"))
    prepared = not cfg.answers  # else data.num_train and data.num_val were not read
    return (
        f"{train} answers to learn from{_asked_for(cfg.data.num_train * prepared, train)}, "
        f"{val} to validate{_asked_for(cfg.data.num_val * prepared, val)}, "
        f"{num_tested} held-out prompts decoded{_asked_for(cfg.eval.num_prompts, num_tested)}"
    )


def _asked_for(wanted: int, given: int) -> str:
    return f" ({wanted} were asked for)" if given < wanted else ""


def compare_with_references(
    cfg: TrainDrafterConfig, target: Target, name: str, answers: JoinedAnswers
) -> DrafterComparison | None:
    """The trained drafter beside its references and a hybrid of it; None if there is nothing to compare it with."""
    runs = RunsFolder(cfg.runs_dir, target)
    references = references_of(runs, name)
    if not references:
        return None
    rows = answers.rows("test", cfg.domain.alone)[: cfg.eval.num_prompts]
    requests = [Request(row.input_ids[: row.prompt_tokens], cfg.domain.name) for row in rows]
    retrieval = retrieval_of(runs, runs.names(), cfg.domain.name)
    pool = PoolConfig(drafters=[*dict.fromkeys([*references, name, retrieval])], selector="static")
    drafters = build_pool(pool, cfg.runtime, runs)[0].drafters
    hybrid = [f"{name}{JOINT}{retrieval}"] if can_combine(drafters[name], drafters[retrieval]) else []
    asked = comparison_config(cfg, pool, [*references, name, *hybrid], cfg.eval.max_new_tokens)
    with TemporaryDirectory() as folder:
        return compare_methods(asked, target, requests, Path(folder))


def references_of(runs: RunsFolder, name: str) -> list[str]:
    """Drafters that one could go on using instead: the generalist, and those that the trained one goes on from."""
    parents = [parent["name"] for parent in runs.manifest(name).parents if parent["kind"] == "drafters"]
    return [one for one in dict.fromkeys([GENERAL, *parents]) if one != name and one in runs.names()]
