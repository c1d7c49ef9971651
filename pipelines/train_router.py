"""prompts -> what the target says of them while it reads -> a router that names their drafter."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from scipy.stats import binomtest
from torch import Tensor

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.folder import reuse_artifact, write_artifact
from drafterforge.artifacts.staging import drop_staging, open_staging
from drafterforge.config.compose import to_dict
from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.config.progress import bar, say, table_console
from drafterforge.config.router import RouterConfig
from drafterforge.data.answering import DATE, user_turns
from drafterforge.data.chat import prompt_ids
from drafterforge.data.prompts import Prompt, load_prompts
from drafterforge.errors import ConfigError
from drafterforge.pipelines.yardstick import Measured, Yardstick
from drafterforge.prompts.rephrase import kinds, partly_rephrased, rephrased
from drafterforge.router.features import TextEncoder, prompt_features, request_text
from drafterforge.router.router import Router
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target
from drafterforge.training.router import expected_calibration_error, fit_router, soft_labels

TOKENS_PER_PASS = 2048  # padded tokens that the target reads at a time
CLEAN = "as written"
LATER = ("labels", "drafters", "max_new_tokens", "held_out_kinds")  # keys that routers made before do not name


def train_router(
    target: Target,
    domains: Sequence[str],
    path: Path,
    config: RouterConfig,
    seed: int,
    *,
    measured: Measured | None = None,
    yardstick: Yardstick | None = None,
    overwrite: bool = False,
) -> Path:
    """A router over domains, or over measured drafters, as a `policies` artifact at `path`, trained or found.

    measured: what drafters made of the prompts; yardstick: measures it, if the router is not there.
    """
    by = measured or yardstick
    settings = {
        "config": {
            "policy": "router",
            "router": recorded(config),
            "domains": list(domains),
            "measured": by.digest if by else None,
            "seed": seed,
            **({"taps": list(target.backbone.taps)} if target.features_fingerprint != target.fingerprint else {}),
        },
        "target": target.name,
        "target_fingerprint": target.fingerprint,
    }
    if not overwrite and reuse_artifact(path, "policies", **settings) is not None:
        say(f"router: {path} was made before with these settings")
        return path
    sets = router_prompts(domains, config, seed)
    if yardstick is not None:
        as_written = [one for found in drawn(domains, config, seed) for prompts in found.values() for one in prompts]
        measured = yardstick.measure(as_written, open_staging(path, settings))
    encoder = TextEncoder.open(config.encoder) if config.features == "text" else None
    read = pooled_sets(target, encoder, sets)
    labels, targets = labelled(read, domains, config, measured)
    net, curve = fit_router(
        (read["train"][1], targets["train"]), (read["val"][1], targets["val"]), len(labels), config, seed
    )
    router = Router(net, labels, target=target.name, target_fingerprint=target.features_fingerprint, encoder=encoder)
    tests = {name: (found, pooled) for name, (found, pooled) in read.items() if name not in ("train", "val")}
    rows = [judged(router, name, *found, targets[name], measured) for name, found in tests.items()]
    for row in rows:
        row["unseen_kind"] = row["prompts"] in config.held_out_kinds
    metrics = {"accuracy": {row["prompts"]: row["accuracy"] for row in rows}, "temperature": float(net.temperature)}
    metrics["device"] = describe_device(target.device)
    with write_artifact(
        path,
        kind="policies",
        name=path.name,
        parents=measured.parents if measured else (),
        metrics=metrics,
        replace=overwrite,
        **settings,
    ) as folder:
        router.save(folder)
        save_json_atomic(folder / "curves.json", curve)
        save_json_atomic(folder / "rows.json", rows)
    drop_staging(path)
    show(rows)
    say(f"router: {rows[0]['accuracy']:.1%} of {rows[0]['num_prompts']} held-out prompts as written, {path}")
    return path


# --- prompts -------------------------------------------------------------------------------------


def router_prompts(domains: Sequence[str], config: RouterConfig, seed: int) -> dict[str, list[Prompt]]:
    """Prompts of all domains: partly rephrased for `train` and `val`; test as written, and once for every rephrasing.

    The three use different tasks, and different wordings to rephrase with; kinds that are held out are tested only.
    """
    seen = seen_kinds(config)
    sets: dict[str, list[Prompt]] = {"train": [], "val": [], CLEAN: []} | {kind: [] for kind in kinds()}
    for found in drawn(domains, config, seed):
        for split in ("train", "val"):
            sets[split] += partly_rephrased(found[split], config.rephrased, split, seed, seen)
        sets[CLEAN] += found["test"]
        for kind in kinds():
            sets[kind] += rephrased(found["test"], kind, "test", seed)
    return sets


def seen_kinds(config: RouterConfig) -> list[str]:
    """Kinds of rephrasing in the training prompts."""
    if unknown := sorted({*config.held_out_kinds} - {*kinds()}):
        raise ConfigError(f"router.held_out_kinds names {unknown[0]!r}; type some of {', '.join(kinds())}")
    seen = [kind for kind in kinds() if kind not in config.held_out_kinds]
    if not seen and config.rephrased:
        raise ConfigError("router.held_out_kinds leaves no kind to train on; type router.rephrased=0, or fewer kinds")
    return seen


def drawn(domains: Sequence[str], config: RouterConfig, seed: int) -> list[dict[str, list[Prompt]]]:
    """First turns of each domain's prompts as written, by split."""
    if len(set(domains)) < 2:
        raise ConfigError(f"a router needs at least two domains to tell apart, got {', '.join(domains) or 'none'}")
    data = DataConfig(num_train=config.num_train, num_val=config.num_val, num_test=config.num_test)
    each = [load_prompts(data, DomainConfig(name=name), seed) for name in domains]
    return [{split: first_turns(prompts) for split, prompts in one.items()} for one in each]


def recorded(config: RouterConfig) -> dict[str, Any]:
    """The configuration as manifests have it: later keys only where they are set."""
    plain = to_dict(RouterConfig())
    return {key: value for key, value in to_dict(config).items() if key not in LATER or value != plain[key]}


def first_turns(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts up to what the target is asked first."""
    return [dataclasses.replace(prompt, messages=tuple(user_turns(prompt.messages)[0])) for prompt in prompts]


def pooled_sets(
    target: Target, encoder: TextEncoder | None, sets: Mapping[str, Sequence[Prompt]]
) -> dict[str, tuple[list[Prompt], Tensor]]:
    """Of every set, the prompts that the target can read, and their pooled features, [n, F] float32."""
    found, left_out = {}, 0
    with bar("reading prompts", sum(map(len, sets.values()))) as progress:
        for name, prompts in sets.items():
            ids = [prompt_ids(target.tokenizer, prompt.messages, date=DATE) for prompt in prompts]
            kept = [place for place, one in enumerate(ids) if len(one) <= target.max_positions]
            left_out += len(prompts) - len(kept)
            if not kept:
                raise ConfigError(
                    f"all prompts ({name}) are longer than the {target.max_positions} tokens of the target"
                )
            read = [prompts[place] for place in kept]
            if encoder is None:
                pooled = pooled_by_target(target, [ids[place] for place in kept], progress.advance)
            else:
                pooled = torch.stack([encoder(request_text(prompt.messages)) for prompt in read])
                progress.advance(len(read))
            found[name] = (read, pooled)
    if left_out:
        say(f"router: {left_out} prompts are longer than the target's {target.max_positions} tokens: left out")
    return found


@torch.inference_mode()
def pooled_by_target(target: Target, prompts: Sequence[list[int]], advance: Any = None) -> Tensor:
    """Pooled features of token ids, [n, F] float32; batches hold prompts of like length, padded where nothing looks."""
    waiting = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    pooled: dict[int, Tensor] = {}
    while waiting:
        longest = len(prompts[waiting[-1]])
        count = max(1, TOKENS_PER_PASS // longest)
        waiting, chosen = waiting[:-count], waiting[-count:]
        tokens = torch.zeros(len(chosen), longest, dtype=torch.long)
        for row, place in enumerate(chosen):
            tokens[row, : len(prompts[place])] = torch.tensor(prompts[place])
        positions = torch.arange(longest, device=target.device).expand(len(chosen), -1)
        _, features = target.forward(tokens.to(target.device), positions, None)
        for row, place in enumerate(chosen):
            pooled[place] = prompt_features(features[row, : len(prompts[place])]).cpu()
        if advance is not None:
            advance(len(chosen))
    return torch.stack([pooled[place] for place in range(len(prompts))]).clone()


def labelled(
    read: Mapping[str, tuple[Sequence[Prompt], Tensor]],
    domains: Sequence[str],
    config: RouterConfig,
    measured: Measured | None,
) -> tuple[list[str], dict[str, Tensor]]:
    """The labels, and which of them the prompts of every set have: int64 [n]; where drafters were measured, [n, L]."""
    if measured is None:
        labels = list(domains)
        return labels, {
            name: torch.tensor([labels.index(prompt.domain) for prompt in prompts])
            for name, (prompts, _) in read.items()
        }
    found = {}
    for name, (prompts, _) in read.items():
        lengths = accept_lengths(prompts, measured)
        found[name] = soft_labels(lengths, config.label_temperature) if name == "train" else lengths.argmax(dim=1)
    return list(measured.drafters), found


def accept_lengths(prompts: Sequence[Prompt], measured: Measured) -> Tensor:
    """MAT of every drafter on every prompt, [n, N]; other words, same drafter."""
    ids = [prompt.id.partition("/")[0] for prompt in prompts]
    if lacking := [one for one in ids if one not in measured.accept_lengths]:
        raise ConfigError(f"{len(lacking)} prompts were not measured, such as {lacking[0]}; measure them first")
    return torch.tensor([list(measured.accept_lengths[one]) for one in ids], dtype=torch.float32)


# --- what it is worth ----------------------------------------------------------------------------


def judged(
    router: Router, name: str, prompts: Sequence[Prompt], pooled: Tensor, labels: Tensor, measured: Measured | None
) -> dict[str, Any]:
    """Accuracy with its interval, calibration, and the accept length of what is chosen, on one set of prompts."""
    probabilities = router.net.probabilities(pooled)
    chosen = probabilities.argmax(dim=1)
    right = chosen == labels
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
    row = {
        "prompts": name,
        "num_prompts": len(right),
        "accuracy": float(right.float().mean()),
        "accuracy_ci95": [interval.low, interval.high],
        "ece": expected_calibration_error(probabilities, labels),
        "confidence": float(probabilities.max(dim=1).values.mean()),
        "by_label": {
            label: float(right[labels == place].float().mean())
            for place, label in enumerate(router.labels)
            if (labels == place).any()
        },
    }
    if measured is not None:
        lengths = accept_lengths(prompts, measured)
        row["mat"] = float(lengths.gather(1, chosen[:, None]).mean())
        row["best_mat"] = float(lengths.max(dim=1).values.mean())
    return row


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The tables a reader wants first: of all labels together, and by label."""
    table = Table(title="router, held-out prompts", title_justify="left")
    measured = "mat" in rows[0]
    headings = ("prompts", "number", "accuracy", "95 %", "ECE", "confidence")
    for heading in (*headings, *(("MAT", "best MAT") if measured else ())):
        table.add_column(heading, justify="left" if heading == "prompts" else "right")
    for row in rows:
        low, high = row["accuracy_ci95"]
        table.add_row(
            row["prompts"] + (", unseen kind" if row.get("unseen_kind") else ""),
            str(row["num_prompts"]),
            f"{row['accuracy']:.1%}",
            f"{low:.1%} - {high:.1%}",
            f"{row['ece']:.3f}",
            f"{row['confidence']:.2f}",
            *((f"{row['mat']:.2f}", f"{row['best_mat']:.2f}") if measured else ()),
        )
    by_label = Table(title="accuracy by label", title_justify="left")
    by_label.add_column("label")
    for row in rows:
        by_label.add_column(row["prompts"], justify="right")
    for label in rows[0]["by_label"]:
        shares = [row["by_label"].get(label) for row in rows]
        by_label.add_row(label, *("" if share is None else f"{share:.0%}" for share in shares))
    table_console().print(table)
    table_console().print(by_label)
