"""Distil a drafter from the target's answers, then measure it on held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.run import artifact_run
from drafterforge.assembly.runs import drafter_manifest
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.hints import target_flags
from drafterforge.config.progress import say, table_console
from drafterforge.data.features import JoinedFeatures
from drafterforge.data.joined import JoinedAnswers
from drafterforge.data.prompts import load_prompts
from drafterforge.drafters.base import TrainingJob
from drafterforge.drafters.registry import trained_kind
from drafterforge.evaluation.drafter_comparison import compare_with_references, split_sizes
from drafterforge.evaluation.held_out import decode_held_out
from drafterforge.reporting.artifact import write_report
from drafterforge.reporting.console import print_table
from drafterforge.reporting.drafter_verdict import drafter_verdict, recommended_drafter
from drafterforge.targets.load import Target, load_target
from drafterforge.training import ranks
from drafterforge.training.best_checkpoint import BestCheckpoint
from drafterforge.training.initialisation import choose_init
from drafterforge.training.inputs import find_answers, open_features, packed
from drafterforge.training.loggers import keep_logs, require_loggers, settings_of
from drafterforge.training.parents import parents_of, with_lora_of
from drafterforge.training.trainer import distil

Config = TrainDrafterConfig


def run(cfg: Config) -> Path:
    """Train on all devices; the first one's process prepares the answers before, and measures the drafter after."""
    require_loggers(cfg.trainer)
    with ranks.joined(cfg.trainer, cfg.target.device):
        return train_and_measure(cfg)


def train_and_measure(cfg: Config) -> Path:
    prompts = None if cfg.answers else load_prompts(cfg.data, cfg.domain, cfg.seed)
    target = load_target(cfg.target)
    cfg = choose_init(cfg, target)
    parents_of(cfg, target)  # a mistake in drafter.init fails before prompts are answered
    with ranks.first_rank_first():
        answers = find_answers(ranks.reading(cfg), target, prompts)
    path, first = train(cfg, target, answers), ranks.rank() == 0
    ranks.leave()
    if not first:
        return path
    rows, mismatches = decode_held_out(cfg, target, answers, path)
    references = compare_with_references(cfg, target, path.name, answers)
    report, _ = write_report(
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
    return path


def train(cfg: Config, target: Target, answers: JoinedAnswers, callbacks: Sequence[Any] = ()) -> Path:
    """The `drafters` artifact of this configuration, trained unless it exists.

    callbacks: of lightning's trainer.
    """
    kind = trained_kind(cfg.drafter.kind)
    parent, origin = parents_of(cfg, target)
    if origin:
        cfg = with_lora_of(cfg, origin.manifest)
    path = artifact_dir(cfg.runs_dir, target.name, "drafters", cfg.drafter_name)

    @cache
    def features() -> JoinedFeatures:
        with ranks.first_rank_first():
            return open_features(ranks.reading(cfg), target, answers)

    def distil_module(module: Any) -> BestCheckpoint:
        return distil(
            module,
            packed(cfg, answers, features(), "train", seed=cfg.seed),
            packed(cfg, answers, features(), "val"),
            cfg.trainer,
            ranks.staging(run),
            target.device,
            cfg.seed,
            trained=parent is not None,
            callbacks=callbacks,
        )

    job = TrainingJob(
        config=cfg.drafter,
        trainer=cfg.trainer,
        target=target,
        answers=answers,
        domain=cfg.domain.name,
        seed=cfg.seed,
        input_settings={
            "trainer": settings_of(cfg.trainer),
            "seed": cfg.seed,
            "features": cfg.data.features,
            **answers.recorded_settings,
        },
        answers_domain=cfg.domain.answers_domain,
        parent=parent,
        origin=origin,
        batches=lambda: packed(cfg, answers, features(), "train", seed=cfg.seed),
        distil=distil_module,
    )
    parents = [*answers.manifests, *([parent.manifest] if parent else [])]
    settings = kind.recorded_settings(job)
    run = artifact_run(path, "drafters", target, settings, parents, overwrite=cfg.overwrite)
    if run.existing and not cfg.overwrite:
        say(f"drafter: {path} was trained before with these settings")
        return path
    drafter = kind.train(job)
    if ranks.rank() > 0:
        return path
    with run.write(dict(drafter.metrics)) as folder:
        drafter.save(folder)
        if drafter.curve is not None:
            save_json_atomic(folder / "curves.json", drafter.curve)
            keep_logs(run.staging_dir, folder)
    say(f"drafter: {drafter.summary}, {path}")
    return path
