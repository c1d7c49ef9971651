"""An export is reused only if it was made from these drafters, whenever files were written."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from drafterforge.config.bundle import ExportConfig
from drafterforge.evaluation import vllm_exports
from drafterforge.evaluation.vllm_exports import LAYOUT, ServedDrafters
from drafterforge.interop.layout import write_model


@pytest.fixture
def exports(monkeypatch) -> list[str]:
    """The bundles that drafters were exported from, in order."""
    sources = []

    def export_drafters(cfg: ExportConfig) -> list[str]:
        sources.append(Path(cfg.bundle).name)
        folder = Path(cfg.out)
        folder.mkdir(parents=True, exist_ok=True)
        write_model(folder, {}, {"fc.weight": torch.zeros(1)}, "plain")
        return []

    monkeypatch.setattr(vllm_exports, "export_drafters", export_drafters)
    return sources


def served(folder: Path, bundle: str) -> ServedDrafters:
    """The drafters of a bundle whose record is named `main`."""
    (folder / bundle).mkdir(exist_ok=True)
    record = folder / bundle / "bundle.json"
    if not record.exists():
        record.write_text(f'{{"digest": "{bundle}"}}')
        os.utime(record, (0, 0))  # older than any export, as after a copy
    export = ExportConfig(runs_dir=str(folder / "runs"), **LAYOUT)
    return ServedDrafters(export, "target", ["general"], folder / bundle, SimpleNamespace(name="main"))


def test_a_drafter_of_another_bundle_of_that_name_is_exported_again(tmp_path, exports):
    for bundle in ("old", "old", "new", "new", "old"):
        path = served(tmp_path, bundle).drafter("general")
    assert exports == ["old", "new", "old"] and path.name == "main-general-vllm-plain"


def test_an_export_that_was_written_since_is_not_reused(tmp_path, exports):
    path = served(tmp_path, "old").drafter("general")
    os.utime(path / "model.safetensors", (9, 9))
    served(tmp_path, "old").drafter("general")
    assert exports == ["old", "old"]
