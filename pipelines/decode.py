"""Held-out prompts through the engine: accept length, speed, and whether the text is the target's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.locate import find_artifact
from drafterforge.artifacts.manifest import MANIFEST, Manifest
from drafterforge.assembly.drafters import open_named
from drafterforge.config import catalogue
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.config.names import parse_hybrid
from drafterforge.config.progress import bar, say
from drafterforge.config.serving import GenerateConfig, ServeConfig
from drafterforge.data.chat import prompt_ids
from drafterforge.data.joined import JoinedAnswers
from drafterforge.data.prompts import load_prompts
from drafterforge.drafters.base import Drafter, DrafterSource
from drafterforge.drafters.causal_lm.small import load_small_lm
from drafterforge.drafters.registry import DEFAULT, KINDS, kind_named, manifest_kind
from drafterforge.errors import ArtifactError
from drafterforge.evaluation.lossless import count_mismatches, find_mismatches
from drafterforge.evaluation.methods import AUTOREGRESSIVE, Method
from drafterforge.evaluation.rows import build_row
from drafterforge.evaluation.timing import generate_in_turns
from drafterforge.reporting.artifact import write_report
from drafterforge.runtime.engine import Engine, kind_name
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.runtime.shapes import choose_shape
from drafterforge.targets.load import Target, load_target
from drafterforge.tree.grow import TreeShape


def open_drafter(folder: Path, target: Target) -> Manifest:
    """Check that a drafter is whole and was trained for this target."""
    return open_artifact(folder, "drafters", target_fingerprint=target.fingerprint, target=target.name)


def load_any_drafter(cfg: GenerateConfig | ServeConfig, target: Target) -> Drafter | None:
    """The drafter that `drafter=` names: a trained one, retrieval, or a small language model's folder."""
    if not cfg.drafter:
        return None
    if cfg.drafter in KINDS and not KINDS[cfg.drafter].needs_files:
        return open_named([cfg.drafter], lambda name: source_of(cfg.runs_dir, target, name), target)[cfg.drafter]
    if parse_hybrid(cfg.drafter) is not None and not Path(cfg.drafter).expanduser().exists():
        return open_named([cfg.drafter], lambda name: source_of(cfg.runs_dir, target, name), target)[cfg.drafter]
    folder = Path(cfg.drafter).expanduser()
    if (folder / "config.json").is_file() and not (folder / MANIFEST).is_file():
        if '"eagle_config"' in (text := (folder / "config.json").read_text(errors="replace")) or "Eagle3" in text:
            raise ArtifactError(
                f"{folder} looks like an EAGLE-3 head of another program; type `drafterforge import path={folder}`"
            )
        return load_small_lm(folder, target)
    folder = find_artifact(cfg.runs_dir, target.name, "drafters", cfg.drafter, hint=command_for(cfg.drafter))
    return open_any(folder, target)


def source_of(runs_dir: Path | str, target: Target, name: str) -> DrafterSource:
    """Where a drafter's files are; it and what it adds to are whole, and for this target."""
    if name in KINDS and not KINDS[name].needs_files:
        return DrafterSource(name, name, None)
    hint = f"drafterforge train-drafter domain=... name={name}"
    return source_in(find_artifact(runs_dir, target.name, "drafters", name, hint=hint), target, name)


def source_in(folder: Path, target: Target, name: str) -> DrafterSource:
    """The `drafters` artifact at `folder`, and what it adds to, whole and for this target."""
    kind = kind_of(open_drafter(folder, target))
    base = kind_named(kind).base_of(folder)
    if base is not None:
        open_drafter(base, target)
    return DrafterSource(name, kind, folder, base)


def command_for(drafter: str) -> str:
    """The command that makes a drafter of this name: `sql`, or `sql-retrieval`, or any other."""
    domain, _, kind = drafter.partition("-")
    if domain not in catalogue.group_choices("domain"):
        return f"drafterforge train-drafter domain=sql name={Path(drafter).name}"
    kinds = set(catalogue.group_choices("drafter")) - {DEFAULT}
    return f"drafterforge train-drafter domain={domain}" + (f" drafter={kind}" if kind in kinds else "")


def kind_of(manifest: Manifest) -> str:
    """The kind of a `drafters` artifact."""
    return manifest_kind(manifest.config)


def open_any(folder: Path, target: Target) -> Drafter:
    """The drafter of any kind in the `drafters` artifact at `folder`, checked, ready to decode."""
    source = source_in(folder, target, folder.name)
    return kind_named(source.kind).load(source, target)


def engine_for(folder: Path, target: Target, shape: TreeShape, numerics: str = "fast") -> Engine:
    """An engine with the drafter in `folder`."""
    return Engine(target, open_any(folder, target), shape, numerics=numerics)


def held_out_prompts(target: Target, count: int, domains: Sequence[str]) -> list[list[int]]:
    """Test prompts of the built-in grammars, the domains taking turns."""
    data = DataConfig(num_train=1, num_val=1, num_test=-(-count // len(domains)))
    drawn = [load_prompts(data, DomainConfig(name=name), seed=0)["test"] for name in domains]
    mixed = [prompt for group in zip(*drawn, strict=True) for prompt in group][:count]
    return [prompt_ids(target.tokenizer, prompt.messages) for prompt in mixed]


def decode_held_out(cfg: TrainDrafterConfig, target: Target, answers: JoinedAnswers, drafter: Path) -> dict:
    """Measure the drafter on test prompts of its domain; writes and returns the report."""
    open_drafter(drafter, target)
    rows = answers.rows("test", cfg.domain.alone)[: cfg.eval.num_prompts]
    prompts = [row.input_ids[: row.prompt_tokens] for row in rows]
    report_rows, details = _measure(cfg, target, drafter, prompts)
    if cfg.eval.check_float32 and target.dtype != torch.float32:
        try:
            checked = load_target(dataclasses.replace(cfg.target, dtype="float32"))
            more_rows, more = _measure(cfg, checked, drafter, prompts)
            report_rows, details = report_rows + more_rows, details + more
        except (torch.OutOfMemoryError, MemoryError):
            say("the float32 check does not fit in memory and was left out; type eval.check_float32=false to skip it")
    report, _ = write_report(
        cfg.runs_dir,
        target,
        cfg.drafter_name,
        suite=f"{cfg.domain.name}, held out",
        seed=cfg.seed,
        numerics=cfg.runtime.numerics,
        rows=report_rows,
        curves={"mismatches": details},
        config={"eval": to_dict(cfg.eval), "runtime": to_dict(cfg.runtime), "domain": cfg.domain.name},
        parents=[open_drafter(drafter, target), *answers.manifests],
    )
    return report


def _measure(
    cfg: TrainDrafterConfig, target: Target, drafter: Path, prompts: list[list[int]]
) -> tuple[list[dict], list[dict]]:
    """Rows of autoregressive, chain and tree decoding in the target's dtype, and the mismatches found."""
    dtype = str(target.dtype).removeprefix("torch.")
    opened = open_any(drafter, target)
    kind = kind_name(opened)
    tree = choose_shape(cfg.runtime, target.device, target.dtype, kind)
    chain = TreeShape(num_tokens=tree.depth + 1, depth=tree.depth, top_k=1)
    described = {"chain": chain, "tree": tree} if cfg.eval.chain else {"tree": tree}
    numerics = choose_numerics(cfg.runtime.numerics, target)
    methods = [Method(AUTOREGRESSIVE, Engine(target, numerics="fast"))]  # the fastest, which speed-ups are over
    same_as = AUTOREGRESSIVE
    if numerics == "invariant":
        same_as = f"{AUTOREGRESSIVE}, invariant"
        methods.append(Method(same_as, Engine(target, numerics=numerics)))
    for name, shape in described.items():
        methods.append(
            Method(
                f"{kind} {name} {shape.num_tokens}/{shape.depth}/{shape.top_k}",
                Engine(target, opened, shape, numerics=numerics),
                selector="static",
                scheduler="static",
                drafters=[drafter.name],
            )
        )
    with bar(f"decoding in {dtype}", len(prompts) * len(methods)) as progress:
        found = generate_in_turns(methods, prompts, cfg.eval.max_new_tokens, progress.advance)

    @cache
    def exact_target() -> Target:
        return load_target(dataclasses.replace(cfg.target, dtype="float64"))

    rows, details = [], []
    for method in methods:
        exact = None
        text = AUTOREGRESSIVE if method.name == AUTOREGRESSIVE else same_as
        if target.dtype == torch.float32:

            def exact(method: Method = method) -> tuple[Engine, Engine]:
                return engine_for(drafter, exact_target(), method.engine.shape), Engine(exact_target())

        mismatches = find_mismatches(method.name, target, found[method.name], found[text], exact)
        details += [{"dtype": dtype, **one.as_dict()} for one in mismatches]
        rows.append(
            build_row(
                method,
                found[method.name],
                found[AUTOREGRESSIVE],
                domain=cfg.domain.name,
                mismatches=count_mismatches(mismatches),
                dtype=dtype,
                numerics=method.engine.numerics,
            )
        )
    return rows, details
