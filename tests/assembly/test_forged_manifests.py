"""A drafter whose manifest is forged, with the right digest, is refused in one line."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from drafterforge.artifacts.manifest import MANIFEST, Manifest
from drafterforge.assembly.runs import RunsFolder, open_for_decoding
from drafterforge.config.target import TargetConfig
from drafterforge.errors import DrafterforgeError
from drafterforge.targets.load import Target, load_target

STORED = Path(__file__).parents[1] / "first_edition"


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target(TargetConfig(name="tiny", source="hf", model=str(STORED / "target"), dtype="float32"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("config", {"drafter": 3}, "no kind of drafter '3'"),
        ("config", {"drafter": {"kind": ["eagle3"]}}, "no kind of drafter \"\\['eagle3'\\]\""),
        ("parents", [{"kind": "drafters", "name": "../..", "sha256": "x"}], "names the generalist '../..', wanted a"),
        ("target_fingerprint", "x" * 5000, "with fingerprint x+\\.\\.\\., but"),
        ("kind", "x\n" * 5000, "holds x x .*, expected drafters"),
    ],
    ids=["drafter", "kind of drafter", "parent", "fingerprint", "kind"],
)
def test_a_forged_manifest_is_refused(target, tmp_path, key, value, message):
    shutil.copytree(STORED / "artifacts", tmp_path / "runs")
    folder = tmp_path / "runs" / "tiny" / "drafters" / "sql"
    (folder / MANIFEST).write_bytes(replace(Manifest.read(folder), **{key: value}).to_json())
    with pytest.raises(DrafterforgeError, match=message) as caught:
        RunsFolder(str(tmp_path / "runs"), target, quiet=True).summaries()
        open_for_decoding(folder, target)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 800
