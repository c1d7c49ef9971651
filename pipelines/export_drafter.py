"""One drafter of a target, LoRA merged, in a layout that another program serves."""

from __future__ import annotations

from pathlib import Path

import torch

from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.locate import artifact_dir, find_artifact
from drafterforge.bundle.layout import TargetFacts, read_target, write_export
from drafterforge.bundle.sglang import write_sglang
from drafterforge.bundle.vllm import LAYOUTS, write_vllm
from drafterforge.drafter.checkpoint import generalist_of, load_drafter
from drafterforge.drafter.eagle3 import Eagle3Drafter
from drafterforge.drafter.spec import NORMS_31
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
    check_format(format, layout, dtype)
    facts = read_target(target)
    hint = f"drafterforge train-drafter domain=... name={name}"
    folder = find_artifact(runs_dir, facts.name, "drafters", name, hint=hint)
    manifest = open_artifact(folder, "drafters", target_fingerprint=facts.fingerprint, target=facts.name)
    if kind_of(manifest) != "eagle3":
        raise ArtifactError(f"{folder} is a {kind_of(manifest)} drafter; only EAGLE-3 drafters have a layout to export")
    generalist = generalist_of(folder)
    drafter = load_drafter(folder, facts.embedding)
    path = Path(out or artifact_dir(runs_dir, facts.name, "exports", label_of(manifest.name, format, layout)))
    merged = generalist.name if generalist else ""
    return export_loaded(drafter, facts, manifest.name, merged, format, layout, path, overwrite, dtype)


def check_format(format: str, layout: str, dtype: str) -> None:
    """Refuse what no export is made in."""
    for key, value, known in (("format", format, FORMATS), ("dtype", dtype, tuple(DTYPES))):
        if value not in known:
            raise ConfigError(f"{key} must be one of {', '.join(known)}, got {value!r}")
    if layout and (format != "vllm" or layout not in LAYOUTS):
        raise ConfigError(
            f"layout={layout} is none of format={format}; layout= is {' or '.join(LAYOUTS)}, of format=vllm"
        )


def label_of(name: str, format: str, layout: str) -> str:
    """The folder of an export where none is given."""
    return f"{name}-{format}" + ("-plain" if format == "vllm" and layout == "plain" else "")


def export_loaded(
    drafter: Eagle3Drafter,
    facts: TargetFacts,
    name: str,
    generalist: str,
    format: str,
    layout: str,
    path: Path,
    overwrite: bool,
    dtype: str = "auto",
) -> list[str]:
    """As `export_drafter`, of a drafter in memory; generalist: what additions were merged into, empty: none were."""
    path = path.expanduser().resolve()
    layout = layout or LAYOUTS[0]
    with write_export(path, overwrite) as filled:
        if format == "sglang":
            command = write_sglang(filled, drafter, facts, path, DTYPES[dtype])
        else:
            command = write_vllm(filled, drafter, facts, path, layout, DTYPES[dtype])
    merged = f", its additions merged into the weights of {generalist}" if generalist else ""
    size = (path / "model.safetensors").stat().st_size / 1e6
    lines = [f"wrote {path}: drafter {name}{merged}, {size:.1f} MB"]
    if norms := [norm for norm in NORMS_31 if getattr(drafter.spec, norm)]:
        lines.append(f"it has {' and '.join(norms)}, which other programs than SGLang and vLLM do not know")
    return [*lines, f"serve it with: {command}"]
