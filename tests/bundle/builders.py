"""A tiny target on disk, drafters of it as artifacts, and heads in the published layouts."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from drafterforge.artifacts.folder import write_artifact
from drafterforge.config.bundle import ExportConfig
from drafterforge.config.drafter import LoraConfig
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.block.model import BlockDrafter
from drafterforge.drafters.block.spec import BlockSpec
from drafterforge.drafters.eagle3.checkpoint import save_drafter
from drafterforge.drafters.eagle3.init import scratch_init
from drafterforge.drafters.eagle3.lora import ADAPTER
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.drafters.eagle3.train.lora import add_adapter, save_adapter
from drafterforge.interop.export import export_drafters
from drafterforge.interop.layout import TargetFacts, read_target
from tests.models import uneven


def config_of(folder: Path) -> TargetConfig:
    return TargetConfig(name="tiny", source="hf", model=str(folder))


def facts_of(folder: Path) -> TargetFacts:
    return read_target(config_of(folder))


def random_drafter(facts: TargetFacts, size: int = 40, **changes: object) -> Eagle3Drafter:
    """A drafter with random weights and norms that bfloat16 holds exactly, and random target ids."""
    spec = DrafterSpec.for_target(facts.config, facts.taps, size)
    drafter = Eagle3Drafter(DrafterSpec(**{**vars(spec), **changes}), facts.embedding)
    scratch_init(drafter, std=0.2)
    for parameter in drafter.parameters():
        parameter.data.copy_((parameter + 0.1 * torch.randn_like(parameter)).bfloat16())
    drafter.set_vocabulary(torch.randperm(facts.config.vocab_size)[: spec.draft_vocab_size].sort().values)
    return drafter.eval()


def random_block(facts, size: int = 40, **more: object) -> BlockDrafter:
    """A drafter whose weights bfloat16 holds exactly."""
    spec = BlockSpec.for_block(facts.config, facts.taps, size, block_size=5, mask_token_id=7, **more)
    drafter = BlockDrafter(spec, facts.embedding)
    scratch_init(drafter, std=0.2)
    for parameter in uneven(drafter).parameters():
        parameter.data.copy_(parameter.bfloat16())
    drafter.set_vocabulary(torch.randperm(facts.config.vocab_size)[: spec.draft_vocab_size].sort().values)
    return drafter.eval()


def write_drafter(runs: Path, facts: TargetFacts, trained: Eagle3Drafter, name: str = "general", **config: object):
    """The artifact that train-drafter would leave."""
    path = runs / "tiny" / "drafters" / name
    settings = {"target": "tiny", "target_fingerprint": facts.fingerprint, "config": config}
    with write_artifact(path, kind="drafters", name=name, **settings) as folder:
        save_drafter(folder, trained)
    return path


def write_expert(runs: Path, facts: TargetFacts, drafter: Eagle3Drafter, general, name: str = "sql") -> Path:
    """A LoRA expert of the generalist `general`, a manifest."""
    model = add_adapter(drafter, LoraConfig(rank=2, alpha=4.0), seed=0)
    for key, parameter in model.named_parameters():
        if "lora_B" in key:
            parameter.data.normal_(std=0.1)
    path = runs / "tiny" / "drafters" / name
    settings = {"target": "tiny", "target_fingerprint": facts.fingerprint, "config": {}}
    with write_artifact(path, kind="drafters", name=name, parents=[general], **settings) as folder:
        save_adapter(folder / ADAPTER, model, LoraConfig(rank=2, alpha=4.0), general.name)
    return path


def export(runs: Path, target: Path, drafter: str, out: Path | str = "", **typed: object) -> list[str]:
    """What `export format=sglang drafter=...` prints, or in another format."""
    typed = {"format": "sglang", **typed}
    return list(
        export_drafters(
            ExportConfig(target=config_of(target), runs_dir=str(runs), drafter=drafter, out=str(out), **typed)
        )
    )


def edit(folder: Path, section: str = "", **changes: object) -> None:
    """Change config.json, or one of its sections; a value of ... takes the key away."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    part = config[section] if section else config
    part.update(changes)
    for key in [key for key, value in changes.items() if value is ...]:
        del part[key]
    path.write_text(json.dumps(config))


def edit_tensors(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
