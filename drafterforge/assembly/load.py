"""The Python entry points: `drafterforge.load` opens a target, `drafterforge.open` a bundle."""

from __future__ import annotations

import glob
import os
from dataclasses import replace
from pathlib import Path

from drafterforge.artifacts.bundles import find_bundle, is_name
from drafterforge.assembly.build import auto_engine, build_engine
from drafterforge.assembly.bundles import locate, open_bundle
from drafterforge.assembly.checks import check_engine
from drafterforge.assembly.runs import RunsFolder
from drafterforge.assembly.text import TextEngine
from drafterforge.bundle.record import BUNDLE, read_record
from drafterforge.config import catalogue
from drafterforge.config.hints import complete_commands, flags_for
from drafterforge.config.names import AUTO, POOL
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.target import TargetConfig
from drafterforge.errors import ArtifactError, ConfigError, DrafterforgeError
from drafterforge.openmp import warn_if_too_late
from drafterforge.targets.load import Target, load_target, target_name


def load(
    target: str | Path | TargetConfig | Target,
    *,
    drafter: str | Path | None = AUTO,
    pool: PoolConfig | None = None,
    runtime: RuntimeConfig | None = None,
    device: str = "auto",
    dtype: str = "auto",
    runs_dir: str | Path = "runs",
    max_batch: int = 8,
) -> TextEngine:
    """Open a target together with a drafter.

    Args:
        target: a name such as `smollm2-135m` (the choices of `target=` on the command line), a hub id, the folder of a
            model, a `TargetConfig`, or a loaded target.
        drafter: the name or folder of a drafter, a hybrid of two such as `general+retrieval`, or `pool` for a pool of
            the target's drafters. `auto` drafts only as long as drafting is faster, see `auto_engine`. None
            decodes without a drafter.
        pool: for `drafter="pool"`: the drafters, and the selector that picks one for every cycle.
        runtime: tree shape and numerics.
        device: `cpu`, `cuda`, or `auto` for a GPU if there is one.
        dtype: `float32`, `bfloat16`, or `auto` for bfloat16 if the device supports it.
        runs_dir: where drafters are looked up by name, before those shipped with the package.
        max_batch: the largest number of prompts that are decoded together.

    Raises:
        DrafterforgeError: with a one-line message, if something is missing or does not fit.
    """
    warn_if_too_late()
    pool, runtime, drafter = pool or PoolConfig(), runtime or RuntimeConfig(), str(drafter or "")
    check_engine(drafter, pool, runtime)
    if not isinstance(target, Target):
        target = load_target(_target_config(target, device, dtype))
    runs_dir = os.path.expanduser(runs_dir)
    runs = RunsFolder(runs_dir, target, quiet=True)
    try:
        if drafter == AUTO:
            engine, names = auto_engine(runs, runtime, max_batch)
            return TextEngine(engine, names[0] if len(names) == 1 else AUTO if names else "")
        return TextEngine(build_engine(runs, drafter, pool, runtime, max_batch), drafter)
    except DrafterforgeError as error:
        error.args = (complete_commands(str(error), flags_for(target.settings, runs_dir)),)
        raise


def open(
    bundle: str | Path,
    *,
    target: str | Path | TargetConfig | Target | None = None,
    drafter: str | None = AUTO,
    selector: str | None = None,
    scheduler: str | None = None,
    runtime: RuntimeConfig | None = None,
    device: str = "auto",
    dtype: str = "auto",
    runs_dir: str | Path = "runs",
    max_batch: int = 8,
) -> TextEngine:
    """Open the target and the drafters of a bundle; all files are checked first.

    Args:
        bundle: a folder, a `.tar` of one, a hub id (`owner/name`, `owner/name@revision`), or the name of a bundle in
            `runs_dir`.
        target: a hub id, a folder, a `TargetConfig` or a loaded target, instead of the location that the bundle names.
        drafter: the name of one drafter of the bundle, a hybrid of two, or `pool` for all of them and a selector.
            `auto` decodes with the settings given to `export`; without any, as `auto` of `load`. None decodes without
            a drafter.
        selector: what picks the drafter of a cycle in a pool; None: as the bundle says.
        scheduler: a policy of the bundle that chooses trees, "" for none; None: as the bundle says.
        runtime: tree shape and numerics; fields that are None or `auto` are taken from the bundle.
        device: `cpu`, `cuda`, or `auto` for a GPU if there is one.
        dtype: `float32`, `bfloat16`, or `auto` for bfloat16 if the device supports it.
        runs_dir: where bundles are looked up by name.
        max_batch: the largest number of prompts that are decoded together.

    Raises:
        DrafterforgeError: with a one-line message, if the bundle is damaged or was made for another target.
    """
    warn_if_too_late()
    if not isinstance(bundle, str | Path) or not str(bundle):
        raise ConfigError(f"a bundle is a folder, a .tar, a hub id or a name, got {bundle!r}")
    drafter = drafter or ""
    target = str(target) if isinstance(target, Path) else target
    if isinstance(target, TargetConfig) or target in catalogue.group_choices("target"):
        target = _target_config(target, device, dtype)
    runs_dir = os.path.expanduser(runs_dir)
    folder = locate(bundle if isinstance(bundle, Path) else bundle_path(bundle, target, runs_dir))
    engine = open_bundle(
        folder,
        target=target,
        drafter=drafter,
        selector=selector,
        scheduler=scheduler,
        device=device,
        dtype=dtype,
        runtime=runtime,
        max_batch=max_batch,
    )
    single = drafter not in (AUTO, POOL)
    return TextEngine(engine, drafter if single else f"bundle {read_record(folder).name}")


def _target_config(target: str | Path | TargetConfig, device: str, dtype: str) -> TargetConfig:
    """The configuration of a target given by name, hub id, folder or configuration."""
    if not isinstance(target, TargetConfig):
        return named_target(str(target), device, dtype)
    is_unnamed = target.source == "hf" and target.name == TargetConfig.name  # the default names the embedded target
    return replace(target, name="") if is_unnamed else target


def named_target(text: str, device: str, dtype: str) -> TargetConfig:
    """The configuration of the target with this name, hub id or folder."""
    values = {"name": "", "source": "hf", "model": text}
    names = catalogue.group_choices("target")
    is_word = "/" not in text and not Path(text).expanduser().exists()
    if text in names:
        values = catalogue.group_values("target", text)
    elif is_word and (hint := catalogue.did_you_mean(text, names, 0.75)):
        raise ConfigError(f"there is no target {text!r}{hint}; a folder or a hub id works too")
    return TargetConfig(**values, device=device, dtype=dtype)


def bundle_path(text: str, target: str | TargetConfig | Target | None, runs_dir: str | Path) -> str | Path:
    """The folder of a bundle given by name, of any target if none is given; a path or hub id is returned unchanged."""
    if not is_name(text):
        return text
    if isinstance(target, str):
        target = named_target(target, "auto", "auto")
    name = target.name if isinstance(target, Target) else target_name(target or TargetConfig())
    folders = sorted(path.parent for path in Path(runs_dir).glob(f"*/bundles/{glob.escape(text)}/{BUNDLE}"))
    if target is not None or not folders or Path(runs_dir) / name / "bundles" / text in folders:
        return find_bundle(text, name, runs_dir)
    if len(folders) > 1:
        raise ArtifactError(f"{text!r} names {len(folders)} bundles; open one of {', '.join(map(str, folders))}")
    return folders[0]
