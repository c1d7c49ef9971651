"""LoRA experts from the command line: small adapters of a generalist, which training can continue."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from drafterforge.artifacts.folder import open_artifact
from drafterforge.assembly.pools import open_pool
from drafterforge.cli import main
from drafterforge.config.target import TargetConfig
from drafterforge.data.answers import AnswerSet
from drafterforge.data.joined import JoinedAnswers
from drafterforge.drafters.eagle3 import checkpoint
from drafterforge.drafters.eagle3.fused import AdaptedLinear
from drafterforge.pipelines import train_drafter
from drafterforge.targets.load import load_target
from tests.pipelines.conftest import CONTINUED, EXPERT, GENERAL, SMOKE, rising_lengths

pytestmark = pytest.mark.slow  # many short tests


def test_an_expert_is_a_small_adapter_that_names_its_generalist(pool):
    general = open_artifact(pool.artifact("drafters", "general"), "drafters")
    manifest = open_artifact(pool.artifact("drafters", "sql"), "drafters")
    assert {"adapter/adapter_config.json", "adapter/adapter_model.safetensors"} <= manifest.files.keys()
    assert "model.safetensors" not in manifest.files
    assert {"kind": "drafters", "name": "general", "sha256": general.digest} in manifest.parents
    tensors = load_file(pool.artifact("drafters", "sql") / "adapter" / "adapter_model.safetensors")
    assert any(tensor.any() for name, tensor in tensors.items() if "lora_B" in name)  # training has changed it
    assert pool.finished().count("tiny/answers/general") == 1 and "tiny/answers/sql" not in pool.finished()


def test_an_expert_trains_only_on_answers_of_its_domain(pool):
    answers = JoinedAnswers([AnswerSet.open(pool.artifact("answers", "general"))])
    for split in ("train", "val", "test"):
        full, sql_rows = answers.rows(split), answers.rows(split, "sql")
        assert {row.domain for row in sql_rows} == {"sql"} and {row.domain for row in full} > {"sql"}
        assert [full[row].input_ids for _, row in sql_rows.locations.tolist()] == [row.input_ids for row in sql_rows]
        assert len(answers.rows(split, "general")) == len(answers.rows(split, "medical")) == len(full)


def test_experts_of_a_pool_share_their_generalist_s_weights(pool):
    target = load_target(TargetConfig(source="hf", model=str(pool.target), dtype="float32"))
    target.name = "tiny"
    opened = open_pool(pool.runs, target, ["general", "sql", "math", "retrieval"])
    for name in ("sql", "math"):
        linear = opened[name].linears["head"]
        assert isinstance(linear, AdaptedLinear) and linear.base is opened["general"].linears["head"]


def test_an_expert_without_its_generalist_is_refused(pool):
    shutil.rmtree(pool.artifact("drafters", "general"))
    line = pool("generate", "prompt=x", "drafter=sql").one_line()
    assert "needs its generalist 'general'; put it at" in line


def test_an_expert_of_another_generalist_is_refused(pool):
    general = pool.artifact("drafters", "general")
    for again in ((*GENERAL, "seed=1"), ("import", f"path={general}", "name=general")):
        line = pool(*again, "overwrite=true").one_line()
        assert "is the generalist of math, sql, which need exactly its weights; type name=OTHER" in line
    shutil.rmtree(general)
    assert pool(*GENERAL, "seed=1", "overwrite=true").code == 0
    line = pool("generate", "prompt=x", "drafter=sql").one_line()
    assert "with digest" in line and "overwrite=true" in line


def adapter_tensors(pool, name):
    return load_file(pool.artifact("drafters", name) / "adapter" / "adapter_model.safetensors")


def test_training_continues_an_expert_and_changes_only_its_adapter(pool):
    general = (pool.artifact("drafters", "general") / "model.safetensors").read_bytes()
    with rising_lengths():
        done = pool(*CONTINUED, "name=mine")
    assert done.code == 0, done.err
    manifests = {
        name: open_artifact(pool.artifact("drafters", name), "drafters") for name in ("general", "sql", "mine")
    }
    mine = manifests["mine"]
    assert [parent for parent in mine.parents if parent["kind"] == "drafters"] == [manifests["general"].as_parent()]
    assert mine.config["origin"] == manifests["sql"].as_parent() and mine.config["drafter"]["lora"]["rank"] == 4
    assert (pool.artifact("drafters", "general") / "model.safetensors").read_bytes() == general
    assert not [name for name in mine.files if name.endswith("model.safetensors") and "adapter" not in name]
    before, after = adapter_tensors(pool, "sql"), adapter_tensors(pool, "mine")
    assert {name: tensor.shape for name, tensor in before.items()} == {
        name: tensor.shape for name, tensor in after.items()
    }
    assert any(not torch.equal(before[name], after[name]) for name in before)
    target = load_target(TargetConfig(source="hf", model=str(pool.target), dtype="float32"))
    tokens = [
        checkpoint.load_drafter(pool.artifact("drafters", name), target.backbone.embedding).token_ids
        for name in manifests
    ]
    assert torch.equal(tokens[0], tokens[2])
    ask = ("generate", "prompt=Which users are active?", "max_new_tokens=12")
    assert pool(*ask, "drafter=mine").out == pool(*ask, "drafter=").out != ""
    assert "was trained before" in pool(*CONTINUED, "name=mine").err
    pool.capsys.readouterr()
    assert main(["inspect", str(pool.artifact("drafters", "mine"))]) == 0
    assert f"drafters sql ({manifests['sql'].digest[:12]})" in pool.capsys.readouterr().out


def test_an_expert_that_training_does_not_improve_keeps_its_weights(pool):
    with rising_lengths(by=-1):
        done = pool(*CONTINUED, "name=same")
    assert done.code == 0, done.err
    before, after = adapter_tensors(pool, "sql"), adapter_tensors(pool, "same")
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert_initial_weights(pool, done.err, "same")


def assert_initial_weights(pool, message: str, name: str) -> None:
    """The message, the curve and the manifest say that training kept the initial weights."""
    curve = json.loads((pool.artifact("drafters", name) / "curves.json").read_text())
    start, *later = [point["val/accept_length"] for point in curve]
    assert [point["step"] for point in curve] == [0, 2, 4]
    metrics = open_artifact(pool.artifact("drafters", name), "drafters").metrics
    assert (metrics["best_step"], metrics["val_accept_length"], metrics["steps"]) == (0, start, 4)
    lengths = f"accept length {max(later):.2f} at best against {start:.2f} at the start"
    assert f"training did not improve on the weights it started from, which were kept: {lengths}" in message


def test_a_full_drafter_that_training_does_not_improve_keeps_its_weights(pool):
    again = ("train-drafter", "domain=sql", "answers=general", "drafter.init=general", "name=again", *SMOKE)
    with rising_lengths(by=-1):
        done = pool(*again)
    assert done.code == 0, done.err
    before, after = (pool.artifact("drafters", name) / "model.safetensors" for name in ("general", "again"))
    assert before.read_bytes() == after.read_bytes()
    assert_initial_weights(pool, done.err, "again")


def test_a_new_domain_is_by_default_an_expert_of_the_generalist(pool):
    small = ("drafter.lora.rank=4", "drafter.draft_vocab_size=16384")  # the defaults, which smoke changes
    with rising_lengths():
        done = pool("train-drafter", "domain=python", "answers=general", *SMOKE, *small)
    assert done.code == 0 and "python adds a LoRA to general" in done.err, done.err
    manifest = open_artifact(pool.artifact("drafters", "python"), "drafters")
    assert (manifest.config["drafter"]["init"], manifest.config["drafter"]["tuning"]) == ("general", "lora")
    assert "general" in [parent["name"] for parent in manifest.parents if parent["kind"] == "drafters"]
    for method in ("general alone", "python alone", "general+retrieval", "python+retrieval"):
        assert method in done.out
    assert "1 prompt is too few for a verdict" in done.out
    next_command = done.out.splitlines()[-1].partition("next: drafterforge generate ")[2]
    drafters = ("", "general", "python", "general+retrieval", "python+retrieval")
    assert next_command.split()[0] in [f"drafter={name}" for name in drafters]  # whichever was the fastest
    explicit = (*EXPERT, "domain=python", "drafter.draft_vocab_size=16384")
    assert "was trained before" in pool(*explicit).err  # the same settings, typed in full
    done = pool("train-drafter", "domain=python", "answers=general", "drafter=eagle3", "name=new", *SMOKE)
    assert open_artifact(pool.artifact("drafters", "new"), "drafters").config["drafter"]["tuning"] == "full"


def test_all_weights_of_an_expert_can_be_trained_further(pool):
    typed = "drafter=eagle3", "drafter.init=sql", "drafter.draft_vocab_size=9", "name=whole"
    done = pool("train-drafter", "domain=python", "answers=general", *SMOKE, *typed)
    assert done.code == 0 and "whole has the draft vocabulary of sql" in done.err, done.err
    folder = pool.artifact("drafters", "whole")
    assert open_artifact(folder, "drafters").config["drafter"]["tuning"] == "full"
    assert (folder / "config.json").is_file()
    assert pool("generate", "drafter=whole", "prompt=Hello", "max_new_tokens=3").code == 0


REFUSED = {
    "drafter.lora.rank=8 differs from 4 of sql, whose training continues": ("name=mine", "drafter.lora.rank=8"),
    "drafter.lora.targets=['fc'] differs from": ("name=mine", "drafter.lora.targets=[fc]"),
    "drafter.init=sql is the expert that this would write itself; type name=OTHER": (),
}


@pytest.mark.parametrize("expected", REFUSED)
def test_continued_training_refuses_another_rank_and_the_same_name(pool, expected, monkeypatch):
    def never(*_):
        raise AssertionError("answered prompts before the mistake was reported")

    monkeypatch.setattr(train_drafter, "find_answers", never)
    assert expected in pool(*CONTINUED, *REFUSED[expected]).one_line()
