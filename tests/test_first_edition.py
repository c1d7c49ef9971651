"""Folders of the first edition open unchanged: `tests/first_edition` was written by the commit before the new house."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import drafterforge
from drafterforge.artifacts.json_input import read_json
from drafterforge.assembly.bundles import check_bundle
from drafterforge.bundle.record import BUNDLE
from drafterforge.cli import main
from tests.bundle.conftest import edit

STORED = Path(__file__).parent / "first_edition"
EXPECTED = json.loads((STORED / "expected.json").read_text())
PROMPTS = [
    "How many users are there? How many users are there in 2019 and in 2020?",
    "What is 3 times 4? And 4 times 3?",
]
ARTIFACTS = sorted(
    str(path.parent.relative_to(STORED))
    for path in (STORED / "artifacts").rglob("manifest.json")
    if "bundles" not in path.parts
)


@pytest.mark.parametrize("artifact", ARTIFACTS)
def test_an_artifact_of_the_first_edition_is_inspected_and_whole(artifact, capsys):
    assert main(["inspect", str(STORED / artifact)]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_a_bundle_of_the_first_edition_gives_the_tokens_it_gave(case, tmp_path):
    name, drafter = case.split("/")
    bundle = "hedge.tar" if name == "hedge" else name
    path = Path(shutil.copytree(STORED / "artifacts" / "tiny" / "bundles", tmp_path / "bundles")) / bundle
    target = str(STORED / "target")
    engine = drafterforge.open(path, target=target, dtype="float32", drafter=drafter or "auto")
    answers = engine.runtime.generate(PROMPTS, max_new_tokens=24)
    assert [answer.tokens for answer in answers] == EXPECTED[case]["tokens"]
    # Tree shapes may follow the device; the drafters that a stored router or scheduler works with may not.
    drafters = [{cycle[0] for cycle in cycles} for cycles in EXPECTED[case]["cycles"]]
    if name == "joint" and not drafter:
        assert [{cycle.drafter for cycle in answer.cycles} for answer in answers] == drafters


def test_a_bundle_that_recorded_cycles_between_reads_opens_as_if_it_had_not(tmp_path):
    stored = STORED / "artifacts" / "tiny" / "bundles" / "house"
    bundle = Path(shutil.copytree(stored, tmp_path / "house"))
    assert read_json(bundle / BUNDLE)["defaults"]["every"] == 1
    edit(bundle, lambda content: content["defaults"].update(every=3))
    assert check_bundle(bundle).defaults == check_bundle(stored).defaults
    engine = drafterforge.open(bundle, target=str(STORED / "target"), dtype="float32", drafter="pool")
    answers = engine.runtime.generate(PROMPTS, max_new_tokens=24)
    assert [answer.tokens for answer in answers] == EXPECTED["house/"]["tokens"]


@pytest.mark.parametrize("drafter", ["general", "sql", "small", "store", "general+store", "pool"])
def test_a_drafter_of_the_first_edition_decodes_the_target_s_text(drafter, tmp_path, capsys):
    runs = shutil.copytree(STORED / "artifacts", tmp_path / "runs")
    ask = ["generate", "prompt=How many users are there?", "max_new_tokens=12", "target=hf", "target.name=tiny"]
    ask += [f"target.model={STORED / 'target'}", "target.dtype=float32", f"runs_dir={runs}"]
    assert main([*ask, "drafter="]) == 0
    plain = capsys.readouterr().out
    assert main([*ask, f"drafter={drafter}"]) == 0
    assert capsys.readouterr().out == plain
