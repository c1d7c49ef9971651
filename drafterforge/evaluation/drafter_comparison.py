"""Compares a trained drafter with plain decoding and with the drafters it could replace, on held-out prompts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from drafterforge.assembly.pools import GENERAL, build_pool, retrieval_for
from drafterforge.assembly.runs import RunsFolder
from drafterforge.config.commands import EvaluateConfig, QuickstartConfig, TrainDrafterConfig
from drafterforge.config.evaluation import SuiteConfig
from drafterforge.config.names import JOINT
from drafterforge.config.pool import PoolConfig
from drafterforge.data.answering import DATE, user_turns
from drafterforge.data.chat import prompt_ids
from drafterforge.data.joined import JoinedAnswers
from drafterforge.data.prompts import Prompt
from drafterforge.drafters.hybrid.kind import can_combine
from drafterforge.errors import ChatTemplateError, ConfigError
from drafterforge.evaluation.machine_load import load_by_session
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
    """Rows, curves and measurements, as `write_report` takes them."""

    rows: list[dict[str, Any]]
    curves: dict[str, Any]
    measurements: list[Measurement]


def compare_methods(
    cfg: EvaluateConfig, target: Target, requests: Sequence[Request], folder: Path, bundle: Path | None = None
) -> DrafterComparison:
    """Time the configured methods on the requests, interleaved; finished parts in `folder` are reused."""
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
        "machine": load_by_session(measurements, torch.get_num_threads()),
        "commands": commands_of(cfg, methods),
    }
    return DrafterComparison(timed_rows(measurements, mismatches, {}, by_domain=False), curves, measurements)


def comparison_config(
    cfg: TrainDrafterConfig, pool: PoolConfig, methods: Sequence[str], max_new_tokens: int
) -> EvaluateConfig:
    """The configuration of `eval` for this comparison."""
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
    """Test prompts that fit into the target's context.  answers: their source if there are no prompts."""
    if answers is not None:
        tokenized = [row.input_ids[: row.prompt_tokens] for row in answers.rows("test", cfg.domain.answers_domain)]
    else:
        tokenized = list(first_turns_ids(target, prompts["test"]))
    max_tokens = min(cfg.data.max_prompt_tokens, target.max_positions - max(cfg.first_tokens, cfg.eval.max_new_tokens))
    if not (fitting := [Request(tokens, cfg.domain.name) for tokens in tokenized if len(tokens) <= max_tokens]):
        raise ConfigError(
            f"all {len(tokenized)} held-out prompts are longer than {max_tokens} tokens; give shorter ones"
        )
    return fitting[: max(cfg.first_prompts, cfg.eval.num_prompts)]


def first_turns_ids(target: Target, prompts: Sequence[Prompt]) -> Iterator[list[int]]:
    """Token ids of each prompt up to the first answer, without those that the chat template refuses."""
    for prompt in prompts:
        if prompt.transcript:
            yield list(prompt.transcript.ids[: prompt.transcript.prompt_tokens])
        else:
            with contextlib.suppress(ChatTemplateError):  # answering has reported it
                yield prompt_ids(target.tokenizer, user_turns(prompt.messages)[0], date=DATE)


def split_sizes(cfg: TrainDrafterConfig, answers: JoinedAnswers, num_tested: int) -> str:
    """Sizes of the splits in words, with the requested number where there are fewer."""
    train, val = (len(answers.rows(split, cfg.domain.answers_domain)) for split in ("train", "val"))
    prepared = not cfg.answers  # with given answers, data.num_train and data.num_val are not used
    return (
        f"{train} answers to learn from{_requested(cfg.data.num_train * prepared, train)}, "
        f"{val} to validate{_requested(cfg.data.num_val * prepared, val)}, "
        f"{num_tested} held-out prompts decoded{_requested(cfg.eval.num_prompts, num_tested)}"
    )


def _requested(requested: int, available: int) -> str:
    return f" ({requested} were asked for)" if available < requested else ""


def compare_with_references(
    cfg: TrainDrafterConfig, target: Target, name: str, answers: JoinedAnswers
) -> DrafterComparison | None:
    """Compare a trained drafter, its references, and hybrids of both; None if it has no references."""
    runs = RunsFolder(cfg.runs_dir, target)
    references = references_of(runs, name)
    if not references:
        return None
    rows = answers.rows("test", cfg.domain.answers_domain)[: cfg.eval.num_prompts]
    requests = [Request(row.input_ids[: row.prompt_tokens], cfg.domain.name) for row in rows]
    retrieval = retrieval_for(runs.summaries(), cfg.domain.name)
    pool = PoolConfig(drafters=[*dict.fromkeys([*references, name, retrieval])], selector="static")
    drafters = build_pool(pool, cfg.runtime, runs)[0].drafters
    combined = [part for part in (references[0], name) if can_combine(drafters[part], drafters[retrieval])]
    hybrids = [f"{part}{JOINT}{retrieval}" for part in combined]
    config = comparison_config(cfg, pool, [*references, name, *hybrids], cfg.eval.max_new_tokens)
    with TemporaryDirectory() as folder:
        return compare_methods(config, target, requests, Path(folder))


def references_of(runs: RunsFolder, name: str) -> list[str]:
    """Drafters that the trained one could replace: the generalist, and the drafters it was initialised from."""
    parents = [parent["name"] for parent in runs.manifest(name).parents if parent["kind"] == "drafters"]
    return [drafter for drafter in dict.fromkeys([GENERAL, *parents]) if drafter != name and drafter in runs.names()]
