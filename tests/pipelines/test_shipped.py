"""The pool that comes with the package is complete, fits the embedded target, is small and names no path."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.locate import SHIPPED, list_artifacts
from drafterforge.assembly.runs import RunsFolder
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.compose import load_config
from drafterforge.config.data import POOL_DOMAINS, DataConfig, DomainConfig
from drafterforge.config.names import parts_of
from drafterforge.config.serving import GenerateConfig
from drafterforge.drafters.eagle3.checkpoint import generalist_of
from drafterforge.drafters.retrieval.model import SEPARATOR, Datastore
from drafterforge.errors import ArtifactError
from drafterforge.reporting.papers.selector_steps import DEFAULT_EXPERTS
from drafterforge.router.router import Router
from drafterforge.training.checks import check_training

DRAFTERS = SHIPPED / "smollm2-135m" / "drafters"
EXPERTS = POOL_DOMAINS


def test_the_shipped_pool_is_complete_and_small(tmp_path):
    assert list_artifacts(tmp_path, "smollm2-135m", "drafters") == sorted([*EXPERTS, "general", "store"])
    fingerprints = {
        open_artifact(DRAFTERS / name, "drafters").target_fingerprint for name in (*EXPERTS, "general", "store")
    }
    assert len(fingerprints) == 1
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) <= 40e6


def test_the_papers_tables_time_the_experts_of_the_default_pool(tmp_path):
    pool = RunsFolder(tmp_path, SimpleNamespace(name="smollm2-135m")).pool()
    assert sorted(pool) == sorted(["general", *DEFAULT_EXPERTS, "store", "retrieval"])


@pytest.mark.parametrize("name", EXPERTS)
def test_a_shipped_expert_finds_its_generalist(name):
    assert generalist_of(DRAFTERS / name) == DRAFTERS / "general"
    adapter = DRAFTERS / name / "adapter"
    assert sum(path.stat().st_size for path in adapter.iterdir()) < 1.1e6
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == "general"


def test_shipped_files_name_no_path():
    for path in SHIPPED.rglob("*.json"):
        text = path.read_text()
        assert not any(f'"{root}' in text for root in ("/home", "/root", "/tmp", "/work", "/Users")), path


def test_the_shipped_datastore_holds_answers_behind_the_end_of_their_prompts():
    store = Datastore.open(DRAFTERS / "store")
    manifest = open_artifact(DRAFTERS / "store", "drafters")
    assert {parent["kind"] for parent in manifest.parents} == {"answers", "drafters"}  # and the store before
    assert store.num_sequences == 24_659 and store.num_tokens == manifest.metrics["tokens"] > 3_400_000
    text = np.asarray(store.text)
    starts = np.flatnonzero(text == SEPARATOR)[:-1] + 1
    lead = text[starts[:, None] + np.arange(8)]
    assert len(np.unique(lead[:, 3:], axis=0)) == 1  # the end of the user's turn and the start of the assistant's


def test_the_shipped_router_serves_the_shipped_pool(tmp_path):
    names = ",".join(f"{name}+store" for name in ["general", *sorted(EXPERTS)])
    typed = [f"pool.drafters=[{names}]", "pool.selector=router", "pool.router=router"]
    pool = load_config("generate", GenerateConfig, typed).pool
    assert parts_of(pool.drafters) == ["general", "store", *sorted(EXPERTS)]
    assert list_artifacts(tmp_path, "smollm2-135m", "policies") == [pool.router]
    folder = SHIPPED / "smollm2-135m" / "policies" / pool.router
    manifest = open_artifact(folder, "policies", target=open_artifact(DRAFTERS / "general", "drafters").target)
    router = Router.load(folder, manifest.target_fingerprint)
    probs = router.label_shares(pool.drafters)
    drafters = [pool.drafters[index] for index in probs.argmax(axis=1)]
    assert drafters == [f"{label}+store" for label in router.labels] and sorted(router.labels) == sorted(EXPERTS)


def test_a_drafter_of_another_domain_does_not_hide_a_shipped_one(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "Why is my pod pending?"}\n')
    cfg = TrainDrafterConfig(
        name="general", domain=DomainConfig(name="k8s"), data=DataConfig(source="jsonl", path=str(path))
    )
    with pytest.raises(ArtifactError, match=r"general is the shipped drafter of domain=general, .* type name=OTHER"):
        check_training(cfg)
    check_training(replace(cfg, name="mine"))
    check_training(replace(cfg, name="", domain=DomainConfig(name="sql")))
