"""The training job of an EAGLE-3 drafter: initial weights, distillation, saving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from drafterforge.config.drafter import CausalLMConfig, Eagle3DrafterConfig
from drafterforge.drafters.base import DistillationResult, DistilTogether, TrainedDrafter, TrainingJob
from drafterforge.drafters.eagle3.checkpoint import check_taps, load_drafter, load_expert, save_drafter
from drafterforge.drafters.eagle3.init import (
    TargetWeights,
    init_feature_norms,
    scratch_init,
    warm_init,
    with_vocabulary,
)
from drafterforge.drafters.eagle3.lora import ADAPTER
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import NORMS_31, DrafterSpec
from drafterforge.drafters.eagle3.train.lora import add_adapter, load_additions, save_adapter
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.drafters.eagle3.vocab import coverage, draft_token_ids
from drafterforge.targets.load import Target

# defaults of settings added in later versions, which older folders lack
LATER_DEFAULTS = {"fc_norm": False, "norm_output": False, "head": "own"}
LEGACY_KEYS = {"causal_lm": asdict(CausalLMConfig())}  # keys of another kind that existing folders contain


def recorded_config(drafter: Eagle3DrafterConfig) -> dict[str, Any]:
    """The config as manifests record it: later settings are omitted at their defaults, so older folders match.

    A drafter with a parent has the parent's norms, so they are omitted whether they were typed or not.
    """
    of_parent = NORMS_31 if drafter.parent else ()
    return LEGACY_KEYS | {
        key: value
        for key, value in asdict(drafter).items()
        if key not in of_parent and LATER_DEFAULTS.get(key, ...) != value
    }


def recorded_settings(job: TrainingJob, config: dict[str, Any]) -> dict[str, Any]:
    """See `DrafterKind`, of a kind that reads the target's features.  config: of the drafter, as it is recorded."""
    target = job.target
    return {
        "drafter": config,
        "domain": job.domain,
        **job.input_settings,
        "parent": job.parent.manifest.digest if job.parent else None,
        **({"origin": job.origin.manifest.as_parent()} if job.origin else {}),
        **({"taps": list(target.backbone.taps)} if target.features_fingerprint != target.fingerprint else {}),
    }


def train(job: TrainingJob) -> TrainedDrafter:
    config, target = job.config, job.target
    drafter = start_drafter(job)
    batches = job.batches()
    if config.fc_norm and config.init == "warm":
        init_feature_norms(drafter, next(iter(batches)).features)
    return trained(job, drafter, job.distil(DistillModule(drafter, target.head_weight, job.trainer)))


def train_together(jobs: Sequence[TrainingJob], distil: DistilTogether) -> list[TrainedDrafter]:
    """LoRA experts of one generalist, trained side by side."""
    modules = [DistillModule(start_drafter(job), job.target.head_weight, job.trainer) for job in jobs]
    results = distil(modules)
    return [trained(job, module.drafter, result) for job, module, result in zip(jobs, modules, results, strict=True)]


def trained(job: TrainingJob, drafter: Eagle3Drafter, distilled: DistillationResult) -> TrainedDrafter:
    """The drafter with the weights and the scores of its best validation."""
    config, target = job.config, job.target

    def save(folder: Path) -> None:
        if config.tuning == "lora":
            save_adapter(folder / ADAPTER, drafter, config.lora, job.parent.manifest.name)
        else:
            save_drafter(folder, drafter)

    emitted = job.answers.token_counts(target.config.vocab_size, "val", job.answers_domain)
    num_val = len(job.answers.rows("val", job.answers_domain))
    metrics = {
        "val_accept_length": distilled.best_score,
        "val_prompts": num_val,
        "best_step": distilled.best_step,
        "steps": distilled.curve[-1]["step"],
        "draft_vocab_coverage": round(coverage(emitted, drafter.token_ids.cpu()), 4),
    }
    depth = sum(key.startswith("val/accuracy_") for key in distilled.curve[-1])
    return TrainedDrafter(save, distilled.summary(depth, num_val), metrics, distilled.curve)


def start_drafter(job: TrainingJob) -> Eagle3Drafter:
    """An fp32 drafter to train: with the parent's weights, or new."""
    settings, target, config = job.config, job.target, job.target.config
    assert not settings.undecided
    embedding = target.backbone.embedding.float()
    start = job.origin or job.parent
    parent = start.folder if start else None
    if parent is not None:
        check_taps(parent, load_drafter(parent, embedding), target)
    if settings.tuning == "lora":
        drafter, additions = load_expert(parent, embedding)
        drafter = add_adapter(drafter, settings.lora, job.seed)
        return drafter if additions is None else load_additions(drafter, parent / ADAPTER)
    if parent is not None and settings.head == "own":
        return load_drafter(parent, embedding)  # keeps the draft vocabulary, which the head is trained for
    emitted = job.answers.token_counts(config.vocab_size, domain=job.answers_domain)
    token_ids = draft_token_ids(emitted, settings.draft_vocab_size)
    if parent is not None:
        return freeze_target_head(with_vocabulary(load_drafter(parent, embedding), token_ids), target)
    spec = DrafterSpec.for_target(config, target.backbone.taps, len(token_ids))
    spec = replace(spec, fc_norm=settings.fc_norm, norm_output=settings.norm_output)
    drafter = Eagle3Drafter(spec, embedding)
    drafter.set_vocabulary(token_ids)
    torch.manual_seed(job.seed)
    if settings.init == "warm":
        warm_init(drafter, TargetWeights(target.folder), config.num_hidden_layers)
    else:
        scratch_init(drafter)
    drafter = drafter.to(target.device)
    return freeze_target_head(drafter, target) if settings.head == "target" else drafter


def freeze_target_head(drafter: Eagle3Drafter, target: Target) -> Eagle3Drafter:
    """Copy the target's head rows into the drafter's head and freeze it; changes and returns the drafter."""
    with torch.no_grad():
        drafter.lm_head.weight.copy_(target.head_weight[drafter.token_ids.to(target.head_weight.device)])
    drafter.lm_head.requires_grad_(False)
    return drafter
