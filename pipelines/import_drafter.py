"""A published EAGLE-3 head, read strictly -> a drafter like those that train-drafter makes."""

from __future__ import annotations

from pathlib import Path

from drafterforge.artifacts.folder import reuse_artifact, write_artifact
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.config.bundle import ImportConfig
from drafterforge.config.hints import typed_target
from drafterforge.config.progress import say
from drafterforge.drafters.eagle3.checkpoint import save_drafter
from drafterforge.errors import ConfigError
from drafterforge.interop.layout import lossless_dtype, read_target
from drafterforge.interop.published_heads import fetch_head, read_head

Config = ImportConfig


def run(cfg: Config) -> Path:
    """Read the head, check it against the target, and write it as a drafter."""
    if not cfg.path:
        raise ConfigError("import needs a head: type path=FOLDER, or path=OWNER/NAME for one on the hub")
    folder, revision = fetch_head(cfg.path, cfg.revision)
    name = cfg.name or (Path(cfg.path).name or folder.resolve().name).lower()
    target = read_target(cfg.target)
    path = artifact_dir(cfg.runs_dir, target.name, "drafters", name)
    head = read_head(folder, target, cfg.format, cfg.layer_ids, cfg.norm_before_residual)
    for note in head.notes:
        say(f"{name}: {note}")
    imported = {"from": cfg.path, "revision": revision, "format": head.format, "files": head.files}
    settings = {
        "config": {"drafter": {"kind": "eagle3", "tuning": "full"}, "imported": imported},
        "target": target.name,
        "target_fingerprint": target.fingerprint,
    }
    told = f'next: drafterforge generate drafter={name}{typed_target(cfg)} prompt="..."'
    if reuse_artifact(path, "drafters", overwrite=cfg.overwrite, **settings) and not cfg.overwrite:
        print(f"{path} was imported from these files before; {told}")
        return path
    with write_artifact(path, kind="drafters", name=name, replace=cfg.overwrite, **settings) as filled:
        save_drafter(filled, head.drafter, lossless_dtype(head.drafter.state_dict()))
    print(f"wrote {path}, {head.format} head of {head.drafter.spec.draft_vocab_size:,} draft tokens; {told}")
    return path
