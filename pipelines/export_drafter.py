"""One drafter of a target, LoRA merged, in a layout that another program serves."""

from __future__ import annotations

from pathlib import Path

import torch

from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.locate import artifact_dir, find_artifact
from drafterforge.bundle.layout import read_target, write_export
from drafterforge.bundle.sglang import write_sglang
from drafterforge.bundle.vllm import LAYOUTS, write_vllm
from drafterforge.drafter.checkpoint import generalist_of, load_drafter
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.pipelines.decode import kind_of
from drafterforge.schema import TargetConfig

FORMATS = ("sglang", "vllm")
DTYPES = {"auto": None, "bfloat16": torch.bfloat16, "float32": torch.float32}


def export_drafter(
    runs_dir: Path | str,
    target: TargetConfig,
    name: str,
    format: str = "sglang",
    layout: str = "",
    out: Path | str = "",
    overwrite: bool = False,
    dtype: str = "auto",
) -> list[str]:
    """Write the drafter `name` (a name or a folder) and return the lines to print: what was written, how to serve it.

    layout: of format=vllm: speculators, the default, or plain.  out: a folder; empty: under the target's `exports/`.
    dtype: of the weights; auto: bfloat16 where it loses nothing, else float32.
    """
    for key, value, known in (("format", format, FORMATS), ("dtype", dtype, tuple(DTYPES))):
        if value not in known:
            raise ConfigError(f"{key} must be one of {', '.join(known)}, got {value!r}")
    if layout and (format != "vllm" or layout not in LAYOUTS):
        raise ConfigError(
            f"layout={layout} is none of format={format}; layout= is {' or '.join(LAYOUTS)}, of format=vllm"
        )
    facts = read_target(target)
    hint = f"drafterforge train-drafter domain=... name={name}"
    folder = find_artifact(runs_dir, facts.name, "drafters", name, hint=hint)
    manifest = open_artifact(folder, "drafters", target_fingerprint=facts.fingerprint, target=facts.name)
    if kind_of(manifest) != "eagle3":
        raise ArtifactError(f"{folder} is a {kind_of(manifest)} drafter; only EAGLE-3 drafters have a layout to export")
    generalist = generalist_of(folder)
    drafter = load_drafter(folder, facts.embedding)
    layout = layout or LAYOUTS[0]
    label = f"{manifest.name}-{format}" + ("-plain" if format == "vllm" and layout == "plain" else "")
    path = Path(out or artifact_dir(runs_dir, facts.name, "exports", label)).expanduser().resolve()
    with write_export(path, overwrite) as filled:
        if format == "sglang":
            command = write_sglang(filled, drafter, facts, path, DTYPES[dtype])
        else:
            command = write_vllm(filled, drafter, facts, path, layout, DTYPES[dtype])
    merged = f", its additions merged into the weights of {generalist.name}" if generalist else ""
    size = (path / "model.safetensors").stat().st_size / 1e6
    return [f"wrote {path}: drafter {manifest.name}{merged}, {size:.1f} MB", f"serve it with: {command}"]
