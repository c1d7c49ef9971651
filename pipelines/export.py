"""Pack drafters, policies and their figures into a bundle or an archive, or convert drafters for other engines."""

from __future__ import annotations

from pathlib import Path

from drafterforge.artifacts.bundles import bundle_dir
from drafterforge.assembly.packing import make_bundle
from drafterforge.bundle.archive import pack
from drafterforge.bundle.hub import is_hub_id, push
from drafterforge.bundle.record import BUNDLE
from drafterforge.config.bundle import SINGLE_DRAFTERS, ExportConfig
from drafterforge.config.hints import target_flags
from drafterforge.config.progress import say
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.interop.export import check_bundle_of, export_drafters, exports_dir
from drafterforge.interop.layout import read_target
from drafterforge.interop.vllm.pool_folder import FORMAT as VLLM_POOL
from drafterforge.interop.vllm.pool_folder import write_pool

Config = ExportConfig
CONTENTS = ("pool", "runtime", "licence", "target_licence")  # keys that decide what a bundle holds


def run(cfg: Config) -> Path:
    """Returns the path of what `format` asks for."""
    if cfg.push and not is_hub_id(cfg.push):
        raise ConfigError(f"push={cfg.push!r} is not a repository id; type push=OWNER/NAME")
    if cfg.format in SINGLE_DRAFTERS:
        for line in export_drafters(cfg):
            say(line)
        return exports_dir(cfg)
    folder = bundle_dir(cfg)
    rebuild = cfg.format == "bundle" and (cfg.overwrite or not cfg.push)
    if rebuild or not (folder / BUNDLE).is_file():
        make_bundle(cfg, folder)
    else:
        require_no_contents(cfg, folder)
        typed = f"bundle={cfg.bundle_name}{target_flags(cfg)} overwrite=true"
        say(f"{folder} is used as it is; to rebuild it, type drafterforge export {typed}")
    if cfg.format == "tar":
        return write_archive(cfg, folder)
    if cfg.format == VLLM_POOL:
        return write_vllm_pool(cfg, folder)
    if cfg.push:
        say(f"pushed to {push(folder, cfg.push, cfg.private)}; type drafterforge serve bundle={cfg.push}")
    return folder


def require_no_contents(cfg: Config, folder: Path) -> None:
    """ConfigError if the contents of a bundle are typed, which exists and is not written again."""
    typed = [key for key in CONTENTS if getattr(cfg, key) != getattr(ExportConfig(), key)]
    if typed:
        key = f"{typed[0]}=" if typed[0] in ("licence", "target_licence") else f"{typed[0]}.*"
        raise ConfigError(
            f"{folder} exists, so {key} is not read by format={cfg.format}; type it with `drafterforge export "
            f"bundle={cfg.bundle_name} overwrite=true` first"
        )


def write_archive(cfg: Config, folder: Path) -> Path:
    """Write the bundle as one file; equal bundles give equal bytes."""
    path = Path(cfg.out).expanduser() if cfg.out else folder.with_name(f"{folder.name}.tar")
    if path.exists() and not cfg.overwrite:
        raise ArtifactError(f"{path} exists already; type overwrite=true to replace it, or out=OTHER")
    digest = pack(folder, path)
    say(f"{path}: {path.stat().st_size:,} bytes, sha256 {digest}; open it with drafterforge.open({str(path)!r})")
    return path


def write_vllm_pool(cfg: Config, folder: Path) -> Path:
    """Write the folder that vLLM opens to decode with the bundle's pool."""
    out = Path(cfg.out or exports_dir(cfg) / f"{folder.resolve().name}-{VLLM_POOL}").expanduser().resolve()
    target = read_target(cfg.target)
    check_bundle_of(folder, target)
    for line in write_pool(folder, out, target.model, cfg.overwrite):
        say(line)
    return out
