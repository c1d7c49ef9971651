"""Trains a router on prompts of every domain and measures its accuracy on held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.stats import binomtest
from torch import Tensor

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.run import artifact_run
from drafterforge.config.progress import say
from drafterforge.config.router import RouterConfig
from drafterforge.data.prompts import Prompt
from drafterforge.evaluation.drafter_scores import DrafterScorer
from drafterforge.router.features import TextEncoder
from drafterforge.router.router import Router
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target
from drafterforge.training import router_data
from drafterforge.training.router import expected_calibration_error, fit_router
from drafterforge.training.router_data import DrafterScores, accept_lengths


def train_router(
    target: Target,
    domains: Sequence[str],
    path: Path,
    config: RouterConfig,
    seed: int,
    *,
    scores: DrafterScores | None = None,
    scorer: DrafterScorer | None = None,
    overwrite: bool = False,
) -> list[dict[str, Any]]:
    """Write a router over domains, or over scored drafters, as a `policies` artifact; returns rows of its accuracy.

    scores: MAT of the drafters on the prompts; scorer: measures it.  Returns no rows if the router exists already.
    """
    scored = scores or scorer
    settings = router_settings(target, domains, config, seed, scored.digest if scored else None)
    run = artifact_run(path, "policies", target, settings, scored.parents if scored else (), overwrite=overwrite)
    if run.existing and not overwrite:
        say(f"router: {path} was made before with these settings")
        return []
    sets = router_data.router_prompts(domains, config, seed)
    if scorer is not None:
        by_domain = router_data.draw_prompts(domains, config, seed)
        prompts = [prompt for splits in by_domain for split in splits.values() for prompt in split]
        scores = scorer.measure(prompts, run.stage())
    encoder = TextEncoder.open(config.encoder) if config.features == "text" else None
    pooled = router_data.pooled_sets(target, encoder, sets)
    names, labels = router_data.label_prompts(pooled, domains, config, scores)
    examples = [(pooled[split][1], labels[split]) for split in ("train", "val")]
    net, curve = fit_router(*examples, len(names), config, seed)
    router = Router(net, names, target=target.name, target_fingerprint=target.features_fingerprint, encoder=encoder)
    tests = [name for name in pooled if name not in ("train", "val")]
    rows = [score_router(router, name, *pooled[name], labels[name], scores) for name in tests]
    rows = [row | {"unseen_kind": row["prompts"] in config.held_out_kinds} for row in rows]
    metrics = {"accuracy": {row["prompts"]: row["accuracy"] for row in rows}, "temperature": float(net.temperature)}
    metrics["device"] = describe_device(target.device)
    with run.write(metrics) as folder:
        router.save(folder)
        save_json_atomic(folder / "curves.json", curve)
        save_json_atomic(folder / "rows.json", rows)
    return rows


def router_settings(
    target: Target, domains: Sequence[str], config: RouterConfig, seed: int, scores_digest: str | None
) -> dict[str, Any]:
    """Everything that determines a router of a target."""
    settings = {
        "policy": "router",
        "router": router_data.recorded_settings(config),
        "domains": list(domains),
        "measured": scores_digest,
        "seed": seed,
    }
    if target.features_fingerprint != target.fingerprint:
        settings["taps"] = list(target.backbone.taps)
    return settings


def score_router(
    router: Router, name: str, prompts: Sequence[Prompt], pooled: Tensor, labels: Tensor, scores: DrafterScores | None
) -> dict[str, Any]:
    """Accuracy with its interval, calibration, and MAT of the picked drafters, on one set of prompts."""
    probabilities = router.net.probabilities(pooled)
    picked = probabilities.argmax(dim=1)
    is_correct = picked == labels
    interval = binomtest(int(is_correct.sum()), len(is_correct)).proportion_ci(method="wilson")
    row = {
        "prompts": name,
        "num_prompts": len(is_correct),
        "accuracy": float(is_correct.float().mean()),
        "accuracy_ci95": [interval.low, interval.high],
        "ece": expected_calibration_error(probabilities, labels),
        "confidence": float(probabilities.max(dim=1).values.mean()),
        "by_label": {
            label: float(is_correct[labels == index].float().mean())
            for index, label in enumerate(router.labels)
            if (labels == index).any()
        },
    }
    if scores is not None:
        lengths = accept_lengths(prompts, scores)
        row["mat"] = float(lengths.gather(1, picked[:, None]).mean())
        row["best_mat"] = float(lengths.max(dim=1).values.mean())
    return row
