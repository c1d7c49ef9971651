"""Drafters of a domain that read the text alone: a small LM distilled from the answers, and a datastore of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.folder import reuse_artifact, write_artifact
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.manifest import Manifest
from drafterforge.artifacts.staging import drop_staging, open_staging
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.progress import say
from drafterforge.data.joined import JoinedAnswers, JoinedRows
from drafterforge.drafters.causal_lm.model import (
    CausalLMDrafter,
    new_model,
    open_model,
    small_config,
    take_embeddings,
    warm_layers,
)
from drafterforge.drafters.causal_lm.train import SpecialistModule
from drafterforge.drafters.eagle3.init import TargetWeights
from drafterforge.drafters.retrieval.model import Datastore, RetrievalSpec
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.pipelines.decode import kind_of
from drafterforge.pipelines.prepare_data import open_features, packed
from drafterforge.targets.lean import lean_obstacle
from drafterforge.targets.load import Target
from drafterforge.training.loggers import keep_logs
from drafterforge.training.loggers import settings_of as trainer_settings
from drafterforge.training.trainer import distil

Config = TrainDrafterConfig
Parent = tuple[Path, Manifest]


def train_causal_lm(cfg: Config, target: Target, answers: JoinedAnswers, parent: Parent | None) -> Path:
    """The small LM of this configuration as a `drafters` artifact, trained or found."""
    path = artifact_dir(cfg.runs_dir, target.name, "drafters", cfg.drafter_name)
    settings = settings_of(
        cfg,
        target,
        answers,
        init=cfg.drafter.init,
        causal_lm=to_dict(cfg.drafter.causal_lm),
        parent=parent[1].digest if parent else None,
    )
    settings["config"] |= answers.recorded
    settings["config"] |= {"trainer": trainer_settings(cfg.trainer), "seed": cfg.seed, "features": cfg.data.features}
    if made_before(cfg, path, settings):
        return path

    drafter = start_causal_lm(cfg, target, parent)
    features = open_features(cfg, target, answers)
    module = SpecialistModule(drafter.to(target.device), target.head_weight, cfg.trainer)
    staging = open_staging(path, settings)
    keeper = distil(
        module,
        packed(cfg, answers, features, "train", seed=cfg.seed),
        packed(cfg, answers, features, "val"),
        cfg.trainer,
        staging,
        target.device,
        cfg.seed,
        trained=parent is not None,
    )
    metrics = {
        "val_accept_length": keeper.best_score,
        "best_step": keeper.best_step,
        "steps": keeper.curve[-1]["step"],
    }
    parents = [*answers.manifests, *([parent[1]] if parent else [])]
    with write_artifact(
        path, kind="drafters", name=path.name, parents=parents, metrics=metrics, replace=cfg.overwrite, **settings
    ) as folder:
        drafter.save(folder, target.tokenizer)
        save_json_atomic(folder / "curves.json", keeper.curve)
        keep_logs(staging, folder)
    drop_staging(path)
    say(f"drafter: {keeper.outcome(cfg.trainer.validated_steps)}, {path}")
    return path


def build_retrieval(cfg: Config, target: Target, answers: JoinedAnswers) -> Path:
    """The datastore of the training answers as a `drafters` artifact, built or found."""
    path = artifact_dir(cfg.runs_dir, target.name, "drafters", cfg.drafter_name)
    settings = settings_of(cfg, target, answers)
    if cfg.trainer.num_answers:
        settings["config"]["num_answers"] = cfg.trainer.num_answers
    if made_before(cfg, path, settings):
        return path
    store = Datastore.build(answer_texts(answers.rows("train", cfg.domain.alone), RetrievalSpec().max_ngram))
    metrics = {"sequences": store.num_sequences, "tokens": store.num_tokens}
    with write_artifact(
        path,
        kind="drafters",
        name=path.name,
        parents=answers.manifests,
        metrics=metrics,
        replace=cfg.overwrite,
        **settings,
    ) as folder:
        store.save(folder)
    say(f"drafter: a datastore of {metrics['sequences']} answers, {metrics['tokens']} tokens, {path}")
    return path


def settings_of(cfg: Config, target: Target, answers: JoinedAnswers, **drafter: Any) -> dict[str, Any]:
    """What decides the drafter: an artifact made with other settings is not taken for it."""
    return {
        "config": {
            "drafter": {"kind": cfg.drafter.kind, **drafter},
            "domain": cfg.domain.name,
            "answers": answers.digest,
        },
        "target": target.name,
        "target_fingerprint": target.fingerprint,
    }


def made_before(cfg: Config, path: Path, settings: dict[str, Any]) -> bool:
    """Whether the drafter is there already."""
    found = not cfg.overwrite and reuse_artifact(path, "drafters", **settings) is not None
    if found:
        say(f"drafter: {path} was made before with these settings")
    return found


def start_causal_lm(cfg: Config, target: Target, parent: Parent | None) -> CausalLMDrafter:
    """A small LM to train, fp32: the parent, or a new one with the target's embeddings if it is as wide."""
    init, size, config = cfg.drafter.init, cfg.drafter.causal_lm, target.config
    if parent is not None:
        if (found := kind_of(parent[1])) != "causal_lm":
            raise ArtifactError(
                f"drafter.init={init} names a drafter of kind {found}, but drafter=causal_lm starts from a causal_lm; "
                "type drafter.init=warm"
            )
        model = open_model(parent[0])
        return CausalLMDrafter(model, size.train_embeddings or model.config.hidden_size != config.hidden_size)
    if obstacle := lean_obstacle(config):
        raise ConfigError(f"drafter=causal_lm makes a smaller model of the target's family, but {obstacle}")
    torch.manual_seed(cfg.seed)
    model = new_model(small_config(config, size))
    if init == "warm":
        warm_layers(model, TargetWeights(target.folder), config)
    taken = take_embeddings(model, target.backbone.embedding, target.head_weight)
    if not taken and size.train_embeddings is False:
        raise ConfigError(
            f"drafter.causal_lm.train_embeddings=false keeps the target's embeddings, which are {config.hidden_size} "
            f"wide, not {size.hidden_size}; type drafter.causal_lm.train_embeddings=true"
        )
    return CausalLMDrafter(model, bool(size.train_embeddings) or not taken)


def answer_texts(rows: JoinedRows, lead: int) -> Iterator[np.ndarray]:
    """Each answer with the `lead` tokens before it, by which its first tokens are found.

    Prompts stay out: the target does not write them, and its own prompt is looked up in the text at hand.
    """
    for index in range(len(rows)):
        ids, mask = rows.arrays(index)
        edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
        for start, end in edges.reshape(-1, 2):
            yield ids[max(0, start - lead) : end]
