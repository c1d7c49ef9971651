"""answers -> features -> distilled drafter -> lossless decoding of held-out prompts, measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.folder import reuse_artifact, write_artifact
from drafterforge.artifacts.locate import SHIPPED, artifact_dir, find_artifact
from drafterforge.artifacts.manifest import Manifest
from drafterforge.artifacts.staging import drop_staging, open_staging
from drafterforge.assembly.drafters import check_taps
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.drafter import DrafterConfig, LoraConfig
from drafterforge.config.progress import same_target, say, table_console
from drafterforge.data.joined import JoinedAnswers
from drafterforge.data.prompts import load_prompts
from drafterforge.drafters.eagle3.checkpoint import generalist_of, load_drafter, load_expert, save_drafter
from drafterforge.drafters.eagle3.init import TargetWeights, scratch_init, size_norms, warm_init, with_vocabulary
from drafterforge.drafters.eagle3.lora import ADAPTER
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.drafters.eagle3.train.lora import add_adapter, save_adapter, take_additions
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.drafters.eagle3.vocab import coverage, draft_token_ids
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.pipelines.decode import command_for, decode_held_out, open_drafter
from drafterforge.pipelines.prepare_data import find_answers, open_features, packed
from drafterforge.pipelines.train_specialist import Parent, build_retrieval, train_causal_lm
from drafterforge.reporting.console import print_table
from drafterforge.targets.load import Target, load_target
from drafterforge.training.loggers import keep_logs, require_loggers, settings_of
from drafterforge.training.trainer import distil

Config = TrainDrafterConfig
ADDED = {"fc_norm": False, "norm_output": False, "head": "own"}  # settings that were not always there


def run(cfg: Config) -> Path:
    """Distil the drafter of a domain, then decode held-out prompts with it."""
    require_loggers(cfg.trainer)
    prompts = None if cfg.answers else load_prompts(cfg.data, cfg.domain, cfg.seed)  # bad input should not wait
    target = load_target(cfg.target)
    parents_of(cfg, target)  # nor should a mistake in drafter.init wait for answers
    answers = find_answers(cfg, target, prompts)
    path = train(cfg, target, answers)
    report = decode_held_out(cfg, target, answers, path)
    print_table(report, table_console())
    print(f'wrote {path}; next: drafterforge generate drafter={path.name}{same_target(cfg)} prompt="..."')
    return path


def recorded(drafter: DrafterConfig) -> dict[str, Any]:
    """The settings that a drafter is found by, without those added later that change nothing: older ones lack them."""
    return {key: value for key, value in to_dict(drafter).items() if ADDED.get(key, ...) != value}


def train(cfg: Config, target: Target, answers: JoinedAnswers, callbacks: Sequence[Any] = ()) -> Path:
    """The `drafters` artifact of this configuration, trained or found.

    callbacks: lightning's, of an EAGLE-3 drafter's training.
    """
    if cfg.drafter.kind == "retrieval":
        return build_retrieval(cfg, target, answers)
    parent, origin = parents_of(cfg, target)
    if cfg.drafter.kind == "causal_lm":
        return train_causal_lm(cfg, target, answers, parent)
    start = origin or parent
    if origin:
        cfg = with_lora_of(cfg, origin[1])
    name = cfg.drafter_name
    path = artifact_dir(cfg.runs_dir, target.name, "drafters", name)
    settings = {
        "config": {
            "drafter": recorded(cfg.drafter),
            "trainer": settings_of(cfg.trainer),
            "domain": cfg.domain.name,
            "seed": cfg.seed,
            **answers.recorded,
            "features": cfg.data.features,
            "parent": parent[1].digest if parent else None,
            **({"origin": origin[1].as_parent()} if origin else {}),
            **({"taps": list(target.backbone.taps)} if target.features_fingerprint != target.fingerprint else {}),
        },
        "target": target.name,
        "target_fingerprint": target.fingerprint,
    }
    if reuse_artifact(path, "drafters", overwrite=cfg.overwrite, **settings) and not cfg.overwrite:
        say(f"drafter: {path} was trained before with these settings")
        return path

    drafter = start_drafter(cfg, target, answers, start[0] if start else None)
    features = open_features(cfg, target, answers)
    batches = packed(cfg, answers, features, "train", seed=cfg.seed)
    if cfg.drafter.fc_norm and cfg.drafter.init == "warm":
        size_norms(drafter, next(iter(batches)).features)
    module = DistillModule(drafter, target.head_weight, cfg.trainer)
    staging = open_staging(path, settings)
    keeper = distil(
        module,
        batches,
        packed(cfg, answers, features, "val"),
        cfg.trainer,
        staging,
        target.device,
        cfg.seed,
        trained=start is not None,
        callbacks=callbacks,
    )

    emitted = answers.token_counts(target.config.vocab_size, "val", cfg.domain.alone)
    covered = coverage(emitted, drafter.token_ids.cpu())
    metrics = {
        "val_accept_length": keeper.best_score,
        "best_step": keeper.best_step,
        "steps": keeper.curve[-1]["step"],
        "draft_vocab_coverage": round(covered, 4),
    }
    parents = [*answers.manifests, *([parent[1]] if parent else [])]
    with write_artifact(
        path,
        kind="drafters",
        name=name,
        parents=parents,
        metrics=metrics,
        replace=cfg.overwrite,
        **settings,
    ) as folder:
        if cfg.drafter.tuning == "lora":
            save_adapter(folder / ADAPTER, drafter, cfg.drafter.lora, parent[1].name)
        else:
            save_drafter(folder, drafter)
        save_json_atomic(folder / "curves.json", keeper.curve)
        keep_logs(staging, folder)
    drop_staging(path)
    depth = sum(key.startswith("val/accuracy_") for key in keeper.curve[-1])
    say(f"drafter: {keeper.outcome(depth)}, {path}")
    return path


def parents_of(cfg: Config, target: Target) -> tuple[Parent | None, Parent | None]:
    """The drafter that drafter.init names, if any, and None; for an expert that goes on from an expert, that one last.

    The first is then the generalist that both add to.
    """
    init = cfg.drafter.init
    if init in ("scratch", "warm") or cfg.drafter.kind == "retrieval":
        return None, None
    folder = find_artifact(cfg.runs_dir, target.name, "drafters", init, hint=command_for(init))
    named = folder, open_drafter(folder, target)
    if cfg.drafter.tuning == "full":
        return named, None
    generalist = generalist_of(folder)
    parent = named if generalist is None else (generalist, open_drafter(generalist, target))
    beside = artifact_dir(cfg.runs_dir, target.name, "drafters", parent[1].name)
    if SHIPPED not in parent[0].parents and parent[0].resolve() != beside.resolve():
        raise ArtifactError(f"a LoRA expert needs its generalist beside it: {parent[0]} must be at {beside}")
    if generalist is None:
        return named, None
    with_lora_of(cfg, named[1])  # refuses
    if named[1].name == cfg.drafter_name:
        raise ConfigError(f"drafter.init={init} is the expert that this would write itself; type name=OTHER")
    return parent, named


def with_lora_of(cfg: Config, expert: Manifest) -> Config:
    """With rank, alpha and projections of the expert that is gone on from; others that were typed are refused."""
    own, default, typed = LoraConfig(**expert.config["drafter"]["lora"]), LoraConfig(), cfg.drafter.lora
    for key in to_dict(own):
        kept, given = getattr(own, key), getattr(typed, key)
        if given not in (kept, getattr(default, key)):
            raise ConfigError(
                f"drafter.lora.{key}={given} is not that of {expert.name}, whose training goes on: {kept}; leave it "
                "out, or type drafter.init=general for a new expert"
            )
    return replace(cfg, drafter=replace(cfg.drafter, lora=own))


def start_drafter(cfg: Config, target: Target, answers: JoinedAnswers, parent: Path | None) -> Eagle3Drafter:
    """A drafter to train, fp32: the parent's weights, or a new one."""
    config, embedding = target.config, target.backbone.embedding.float()
    if parent is not None:
        check_taps(parent, load_drafter(parent, embedding), target)
    if cfg.drafter.tuning == "lora":
        drafter, additions = load_expert(parent, embedding)
        drafter = add_adapter(drafter, cfg.drafter.lora, cfg.seed)
        return drafter if additions is None else take_additions(drafter, parent / ADAPTER)
    if parent is not None and cfg.drafter.head == "own":
        return load_drafter(parent, embedding)  # with its vocabulary map: a new one would scramble its head
    emitted = answers.token_counts(config.vocab_size, domain=cfg.domain.alone)
    token_ids = draft_token_ids(emitted, cfg.drafter.draft_vocab_size)
    if parent is not None:
        return keep_head(with_vocabulary(load_drafter(parent, embedding), token_ids), target)
    spec = DrafterSpec.for_target(config, target.backbone.taps, len(token_ids))
    spec = replace(spec, fc_norm=cfg.drafter.fc_norm, norm_output=cfg.drafter.norm_output)
    drafter = Eagle3Drafter(spec, embedding)
    drafter.set_vocabulary(token_ids)
    torch.manual_seed(cfg.seed)
    if cfg.drafter.init == "warm":
        warm_init(drafter, TargetWeights(target.folder), config.num_hidden_layers)
    else:
        scratch_init(drafter)
    drafter = drafter.to(target.device)
    return keep_head(drafter, target) if cfg.drafter.head == "target" else drafter


def keep_head(drafter: Eagle3Drafter, target: Target) -> Eagle3Drafter:
    """The drafter with the target's rows as its head, which training leaves alone."""
    with torch.no_grad():
        drafter.lm_head.weight.copy_(target.head_weight[drafter.token_ids.to(target.head_weight.device)])
    drafter.lm_head.requires_grad_(False)
    return drafter
