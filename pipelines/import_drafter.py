"""Convert a published EAGLE-3 head into a drafter like those that train-drafter writes."""

from __future__ import annotations

from pathlib import Path

from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.run import artifact_run
from drafterforge.assembly.runs import require_no_experts
from drafterforge.config.bundle import ImportConfig
from drafterforge.config.checks import require_drafter_name
from drafterforge.config.hints import target_flags
from drafterforge.config.progress import say
from drafterforge.drafters.eagle3.checkpoint import save_drafter
from drafterforge.errors import ConfigError
from drafterforge.interop.layout import lossless_dtype, read_target
from drafterforge.interop.published_heads import fetch_head, read_head

Config = ImportConfig


def run(cfg: Config) -> Path:
    if not cfg.path:
        raise ConfigError("import needs a head: type path=FOLDER, or path=OWNER/NAME for one on the hub")
    name = cfg.name or (Path(cfg.path).name or Path(cfg.path).resolve().name).lower()
    require_drafter_name("name", name)
    folder, revision = fetch_head(cfg.path, cfg.revision)
    target = read_target(cfg.target)
    path = artifact_dir(cfg.runs_dir, target.name, "drafters", name)
    if cfg.overwrite:
        require_no_experts(path)
    head = read_head(folder, target, cfg.format, cfg.layer_ids, cfg.norm_before_residual)
    for note in head.notes:
        say(f"{name}: {note}")
    imported = {"from": cfg.path, "revision": revision, "format": head.format, "files": head.files}
    typed = {"norm_before_residual": cfg.norm_before_residual, "layer_ids": cfg.layer_ids, "taps": cfg.target.taps}
    imported |= {key: value for key, value in typed.items() if value not in (None, [])}  # else the files say it
    settings = {"drafter": {"kind": head.kind, "tuning": "full"}, "imported": imported}
    run = artifact_run(path, "drafters", target, settings, overwrite=cfg.overwrite)
    next_step = f'next: drafterforge generate drafter={name}{target_flags(cfg)} prompt="..."'
    if run.existing and not cfg.overwrite:
        print(f"{path} was imported from these files before; {next_step}")
        return path
    with run.write() as staging:
        save_drafter(staging, head.drafter, lossless_dtype(head.drafter.state_dict()))
    print(f"wrote {path}, {head.format} head of {head.drafter.spec.draft_vocab_size:,} draft tokens; {next_step}")
    return path
