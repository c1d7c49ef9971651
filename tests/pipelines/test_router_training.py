"""A router trained on a tiny target: features of training equal those of serving, and its folder is complete."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from drafterforge.artifacts.folder import open_artifact
from drafterforge.config.router import RouterConfig
from drafterforge.config.target import TargetConfig
from drafterforge.data.answering import DATE
from drafterforge.data.chat import prompt_ids
from drafterforge.data.prompts import Prompt
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.evaluation import drafter_scores
from drafterforge.evaluation.drafter_scores import DrafterScorer
from drafterforge.evaluation.router_training import train_router
from drafterforge.prompts.rephrase import kinds
from drafterforge.router.features import prompt_features
from drafterforge.router.router import Router
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.targets.load import Target, load_target
from drafterforge.training import router_data
from drafterforge.training.router_data import (
    CLEAN,
    DrafterScores,
    accept_lengths,
    first_turns,
    pooled_by_target,
    router_prompts,
)
from drafterforge.tree.grow import TreeShape
from tests.router.test_router import save_encoder

pytestmark = pytest.mark.slow  # many short tests

DOMAINS = ["math", "chat"]
TINY = RouterConfig(num_train=8, num_val=2, num_test=2, max_steps=8)


def train(target: Target, domains: list[str], path: Path, config: RouterConfig, seed: int, **more: object) -> Path:
    """The folder of a router, trained unless it exists."""
    train_router(target, domains, path, config, seed, **more)
    return path


@pytest.fixture(autouse=True)
def ctrl_c_still_works():
    """Lightning ignores SIGINT once it has seen one."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="module")
def served(tiny_folder) -> Target:
    """A tiny target with a tokenizer."""
    return load_target(TargetConfig(source="hf", model=str(tiny_folder), name="tiny", device="cpu", dtype="float32"))


@pytest.fixture(scope="module")
def trained(served, tmp_path_factory):
    """The folder of a router between two domains."""
    return train(served, DOMAINS, tmp_path_factory.mktemp("policies") / "router", TINY, seed=0)


def features_of(target: Target, messages) -> torch.Tensor:
    """What prefill would hand to a selector, [P, 3H]."""
    ids = prompt_ids(target.tokenizer, messages, date=DATE)
    with torch.inference_mode():
        return target.forward(torch.tensor([ids]), torch.arange(len(ids))[None], None)[1][0]


def test_features_of_a_prompt_do_not_depend_on_its_batch(served, monkeypatch):
    monkeypatch.setattr(router_data, "TOKENS_PER_PASS", 90)
    draw = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 200, (n,), generator=draw).tolist() for n in (30, 4, 17, 44, 29, 1)]
    pooled = pooled_by_target(served, prompts)
    for ids, features_of_prompt in zip(prompts, pooled, strict=True):
        _, features = served.forward(torch.tensor([ids]), torch.arange(len(ids))[None], None)
        expected = prompt_features(features[0], served.config.hidden_size)
        torch.testing.assert_close(features_of_prompt, expected, atol=2e-5, rtol=1e-4)


def test_splits_share_no_task_and_every_rephrasing_asks_the_same_test_prompts():
    sets = router_prompts(["sql", "math"], RouterConfig(num_train=40, num_val=10, num_test=10), seed=0)
    tasks = {name: {prompt.task for prompt in prompts} for name, prompts in sets.items()}
    assert not tasks["train"] & tasks["val"] and not (tasks["train"] | tasks["val"]) & tasks[CLEAN]
    assert sum("/" in prompt.id for prompt in sets["train"]) == len(sets["train"]) / 2
    for kind in kinds():
        assert [prompt.id for prompt in sets[kind]] == [f"{prompt.id}/{kind}" for prompt in sets[CLEAN]]


def test_a_conversation_is_routed_by_its_first_message():
    talk = [("system", "Hi"), ("user", "One"), ("user", "Two"), ("assistant", "Three")]
    messages = tuple({"role": role, "content": text} for role, text in talk)
    assert first_turns([Prompt("a", "chat", "", messages, "test")])[0].messages == messages[:2]


def test_a_router_is_a_complete_policy_artifact_of_its_target(trained, served):
    manifest = open_artifact(trained, "policies", target_fingerprint=served.fingerprint)
    assert {"router.json", "router.safetensors", "curves.json", "rows.json"} == manifest.files.keys()
    rows = json.loads((trained / "rows.json").read_text())
    assert [row["prompts"] for row in rows] == [CLEAN, *kinds()]
    assert manifest.metrics["accuracy"] == {row["prompts"]: row["accuracy"] for row in rows}
    assert "cpu" in manifest.metrics["device"]
    for row in rows:
        assert row["num_prompts"] == 4 and set(row["by_label"]) == set(DOMAINS)
        assert 0 <= row["accuracy_ci95"][0] <= row["accuracy"] <= row["accuracy_ci95"][1] <= 1
        assert 0 <= row["ece"] <= 1


def test_served_features_get_the_same_label_as_in_training(trained, served):
    router = Router.load(trained, served.fingerprint)
    sets = router_prompts(DOMAINS, TINY, seed=0)
    right = 0
    for prompt in sets[CLEAN]:
        law = router.drafter_probs(features_of(served, prompt.messages), ["general", *DOMAINS])
        np.testing.assert_allclose(law.sum(), 1.0)
        right += DOMAINS[law[1:].argmax()] == prompt.domain
    rows = json.loads((trained / "rows.json").read_text())
    assert right == round(rows[0]["accuracy"] * rows[0]["num_prompts"])


def test_an_existing_router_is_not_trained_again_and_other_settings_are_refused(trained, served, monkeypatch):
    before = (trained / "manifest.json").read_bytes()
    monkeypatch.setattr(router_data, "pooled_sets", None)
    assert train(served, DOMAINS, trained, TINY, seed=0) == trained
    assert (trained / "manifest.json").read_bytes() == before
    with pytest.raises(ArtifactError, match="seed: 0 there, 1 now"):
        train(served, DOMAINS, trained, TINY, seed=1)


def test_a_router_of_another_target_is_refused(trained, other_folder):
    other_target = load_target(
        TargetConfig(source="hf", model=str(other_folder), name="tiny", device="cpu", dtype="float32")
    )
    with pytest.raises(ArtifactError, match="but this target has fingerprint"):
        Router.load(trained, other_target.fingerprint)
    with pytest.raises(ArtifactError, match="fingerprint"):
        train(other_target, DOMAINS, trained, TINY, seed=0)


def test_measured_drafters_become_the_labels(served, tmp_path):
    sets = router_prompts(DOMAINS, TINY, seed=0)
    ids = {prompt.id.split("/")[0]: prompt.domain for prompts in sets.values() for prompt in prompts}
    lengths = {name: [3.0, 2.0, 1.0] if domain == "math" else [2.0, 2.5, 1.0] for name, domain in ids.items()}
    scores = DrafterScores(["general", "chat", "retrieval"], lengths)
    path = train(served, DOMAINS, tmp_path / "router", TINY, seed=0, scores=scores)
    assert Router.load(path).labels == ["general", "chat", "retrieval"]
    rows = json.loads((path / "rows.json").read_text())
    for row in rows:
        assert row["best_mat"] == pytest.approx(2.75) and set(row["by_label"]) == {"general", "chat"}
        assert row["mat"] <= row["best_mat"]
    lengths.pop(sets["role"][0].id.split("/")[0])
    with pytest.raises(ConfigError, match="1 prompts were not measured"):
        accept_lengths(sets["role"], scores)


def test_a_router_over_texts_reads_an_encoder(served, tmp_path):
    config = replace(TINY, features="text", encoder=str(save_encoder(tmp_path / "bert")))
    path = train(served, DOMAINS, tmp_path / "router", config, seed=0)
    router = Router.load(path, served.fingerprint)
    assert router.kind == "text" and router.probabilities("What is 3 + 4?").shape == (2,)


def test_a_scorer_measures_the_accept_length_of_each_drafter_alone(served, tmp_path, monkeypatch):
    shapes = {"short": TreeShape(2, 1, 1), "long": TreeShape(8, 7, 1)}
    drafters = {name: Retrieval() for name in shapes}
    pool, shape = Pool(drafters, "static", shapes=shapes), TreeShape(4, 3, 1)
    prompts = router_prompts(DOMAINS, TINY, seed=0)[CLEAN]
    monkeypatch.setattr(drafter_scores, "SHARD", 3)
    rule = DrafterScorer(served, pool, shape, 24)
    labels = rule.measure(prompts, tmp_path)
    assert labels.drafters == ["short", "long"] and labels.accept_lengths.keys() == {prompt.id for prompt in prompts}
    for prompt in prompts:
        ids = prompt_ids(served.tokenizer, list(prompt.messages), date=DATE)
        for name, mat in zip(shapes, labels.accept_lengths[prompt.id], strict=True):
            alone = Engine(served, drafters[name], shapes[name]).generate([ids], 24)[0]
            assert mat == pytest.approx((len(alone.tokens) - 1) / len(alone.cycles))
    monkeypatch.setattr(DrafterScorer, "_mats", lambda *_: pytest.fail("measured again"))
    assert rule.measure(prompts, tmp_path).digest == labels.digest
    assert DrafterScorer(served, pool, shape, 25).digest != rule.digest


def test_routers_without_the_setting_labels_are_found_again():
    assert not {*router_data.LATER_KEYS} & router_data.recorded_settings(TINY).keys()
    assert router_data.recorded_settings(replace(TINY, held_out_kinds=["role"]))["held_out_kinds"] == ["role"]


def test_a_kind_that_is_held_out_is_tested_and_not_trained_on(served, tmp_path):
    config = replace(TINY, held_out_kinds=["language"])
    sets = router_prompts(DOMAINS, config, seed=0)
    used = {prompt.id.partition("/")[2] for split in ("train", "val") for prompt in sets[split]}
    assert used == {"", "two_answers", "role"} and len(sets["language"]) == len(sets[CLEAN])
    path = train(served, DOMAINS, tmp_path / "router", config, seed=0)
    rows = json.loads((path / "rows.json").read_text())
    assert [row["prompts"] for row in rows if row["unseen_kind"]] == ["language"]
    for kinds_out, words in ((["rhyme"], "names 'rhyme'; type some of two_answers"), (kinds(), "router.rephrased=0")):
        with pytest.raises(ConfigError, match=words):
            router_prompts(DOMAINS, replace(TINY, held_out_kinds=kinds_out), seed=0)


@pytest.mark.parametrize("domains", [[], ["sql"], ["sql", "sql"]])
def test_one_domain_needs_no_router(served, tmp_path, domains):
    with pytest.raises(ConfigError, match="at least two domains"):
        train(served, domains, tmp_path / "router", TINY, seed=0)


def test_prompts_longer_than_the_context_are_refused_in_one_line(served, tmp_path):
    short = replace(served, config=type(served.config)(**served.config.to_dict() | {"max_position_embeddings": 8}))
    with pytest.raises(ConfigError, match="longer than the 8 tokens of the target"):
        train(short, DOMAINS, tmp_path / "router", TINY, seed=0)
