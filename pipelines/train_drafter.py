"""Distil a drafter, or several LoRA experts together, from the target's answers; measure it on held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drafterforge.assembly.runs import drafter_manifest
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.hints import target_flags
from drafterforge.config.progress import table_console
from drafterforge.data.joined import JoinedAnswers
from drafterforge.data.prompts import load_prompts
from drafterforge.evaluation.drafter_comparison import compare_with_references, split_sizes
from drafterforge.evaluation.held_out import decode_held_out
from drafterforge.reporting.artifact import require_lossless, write_report
from drafterforge.reporting.console import print_table
from drafterforge.reporting.drafter_verdict import drafter_verdict, recommended_drafter
from drafterforge.targets.load import Target, load_target
from drafterforge.training import ranks
from drafterforge.training.best_checkpoint import BestCheckpoint
from drafterforge.training.experts import ExpertRun, distil_experts
from drafterforge.training.initialisation import choose_init
from drafterforge.training.inputs import find_answers
from drafterforge.training.jobs import (
    drafter_run,
    require_one_generalist,
    require_replaceable,
    require_together,
    share_batches,
)
from drafterforge.training.loggers import require_loggers
from drafterforge.training.parents import parents_of
from drafterforge.training.streamed import finish_reading, require_start
from drafterforge.training.trainer import distil

Config = TrainDrafterConfig


def run(cfg: Config) -> Path:
    """Train on all devices; the first one's process prepares the answers before, and measures the drafter after."""
    require_loggers(cfg.trainer)
    with ranks.joined(cfg.trainer, cfg.target.device):
        return train_and_measure(cfg)


def train_and_measure(cfg: Config) -> Path:
    prompts = None if cfg.answers or cfg.data.stream else load_prompts(cfg.data, cfg.domain, cfg.seed)
    target = load_target(cfg.target)
    cfg = choose_init(cfg, target)
    parents_of(cfg, target)  # a mistake in drafter.init fails before prompts are answered
    require_replaceable(cfg, target)
    with ranks.first_rank_first():
        answers = find_answers(ranks.reading(cfg), target, prompts)
    path, first = train(cfg, target, answers), ranks.rank() == 0
    ranks.leave()
    if first:
        finish_reading(cfg)
        require_lossless(*measure(cfg, target, answers, path))
    return path


def run_together(cfgs: Sequence[Config]) -> list[Path]:
    """Train LoRA experts side by side, then measure each."""
    require_loggers(cfgs[0].trainer)
    require_together(cfgs)
    prompts = [None if cfg.answers else load_prompts(cfg.data, cfg.domain, cfg.seed) for cfg in cfgs]
    target = load_target(cfgs[0].target)
    cfgs = [choose_init(cfg, target) for cfg in cfgs]
    require_one_generalist(cfgs, target)
    answers = [find_answers(cfg, target, each) for cfg, each in zip(cfgs, prompts, strict=True)]
    paths = train_together(cfgs, target, answers)
    reports = [measure(cfg, target, of, path) for cfg, of, path in zip(cfgs, answers, paths, strict=True)]
    for report, file in reports:
        require_lossless(report, file)
    return paths


def measure(cfg: Config, target: Target, answers: JoinedAnswers, path: Path) -> tuple[dict[str, Any], Path]:
    """Decode held-out prompts, write the report, and print what the drafter is worth.

    Returns the report, with the rows of what the drafter could replace, and its path; no rows of a spread target.
    """
    if target.is_spread:
        print(f"wrote {path}; not decoded: that needs the target on one device, without target.device_map")
        return {}, path
    rows, mismatches = decode_held_out(cfg, target, answers, path)
    references = compare_with_references(cfg, target, path.name, answers)
    report, file = write_report(
        cfg.runs_dir,
        target,
        cfg.drafter_name,
        suite=f"{cfg.domain.name}, held out",
        seed=cfg.seed,
        numerics=cfg.runtime.numerics,
        rows=rows,
        curves={"mismatches": mismatches, "references": references.rows if references else []},
        config={"eval": to_dict(cfg.eval), "runtime": to_dict(cfg.runtime), "domain": cfg.domain.name},
        parents=[drafter_manifest(path, target), *answers.manifests],
    )
    print_table(report, table_console())
    print(split_sizes(cfg, answers, rows[0]["num_prompts"]))
    recommended = path.name
    if references:
        comparison = report | {"suite": f"{path.name} and what it could replace"}
        comparison |= {"rows": references.rows, "curves": references.curves}
        print_table(comparison, table_console())
        print(drafter_verdict(comparison, path.name))
        recommended = recommended_drafter(comparison, path.name)
    typed = f"drafter={recommended}{target_flags(cfg)}"
    print(f'wrote {path}; next: drafterforge generate {typed} prompt="..."')
    return report | {"rows": [*rows, *(references.rows if references else [])]}, file


def train(cfg: Config, target: Target, answers: JoinedAnswers, callbacks: Sequence[Any] = ()) -> Path:
    """The `drafters` artifact of this configuration, trained unless it exists.

    callbacks: of lightning's trainer.
    """
    run = drafter_run(cfg, target, answers)
    if run.is_finished():
        return run.path
    if cfg.data.stream:
        require_start(cfg, ranks.staging(run.artifact))

    def distil_module(module: Any) -> BestCheckpoint:
        return distil(
            module,
            run.inputs.batches("train"),
            run.inputs.batches("val"),
            cfg.trainer,
            ranks.staging(run.artifact),
            target.device,
            cfg.seed,
            trained=run.job.parent is not None,
            callbacks=callbacks,
        )

    drafter = run.kind.train(replace(run.job, distil=distil_module))
    return run.write(drafter) if ranks.rank() == 0 else run.path


def train_together(cfgs: Sequence[Config], target: Target, answers: Sequence[JoinedAnswers]) -> list[Path]:
    """The `drafters` artifacts of LoRA experts, each as `train` makes it; those that exist are not trained again."""
    runs = [drafter_run(cfg, target, answered) for cfg, answered in zip(cfgs, answers, strict=True)]
    unfinished = [run for run in runs if not run.is_finished()]

    def distil_modules(modules: Sequence[Any]) -> list[BestCheckpoint]:
        batches = zip(share_batches(unfinished, "train"), share_batches(unfinished, "val"), strict=True)
        experts = [
            ExpertRun(run.path.name, run.artifact.stage(), *pair) for run, pair in zip(unfinished, batches, strict=True)
        ]
        return distil_experts(modules, experts, cfgs[0].trainer, target.device, cfgs[0].seed)

    if unfinished:
        drafters = runs[0].kind.train_together([run.job for run in unfinished], distil_modules)
        for run, drafter in zip(unfinished, drafters, strict=True):
            run.write(drafter)
    return [run.path for run in runs]
