"""Several LoRA experts from one command: artifacts, reports, resumption, and mistakes in one line."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from drafterforge.artifacts.folder import open_artifact
from tests.pipelines.conftest import SMOKE, rising_lengths

SHARED = ("train-drafter", "answers=general", "drafter=lora", "trainer.lr=1e-2", *SMOKE, "trainer.precision=32-true")
STUDIES = (*SHARED, "domain=sql", "name=[narrow,wide]", "drafter.lora.rank=[2,6]")


def adapter(bench, name: str) -> dict[str, torch.Tensor]:
    return load_file(bench.artifact("drafters", name) / "adapter" / "adapter_model.safetensors")


@pytest.mark.slow
def test_experts_of_one_command_are_those_of_a_command_each(pool):
    names = {"python": "python", "sql": "narrow"}
    with rising_lengths():
        done = pool(*SHARED, "domain=[python,sql]", "name=[python,narrow]", "trainer.lr=[1e-2,2e-2]")
    assert done.code == 0, done.err
    together = {
        name: (adapter(pool, name), open_artifact(pool.artifact("drafters", name), "drafters"))
        for name in names.values()
    }
    curves = [json.loads((pool.artifact("drafters", name) / "curves.json").read_text()) for name in together]
    assert {tuple(point["step"] for point in curve) for curve in curves} == {(0, 2, 4)}
    for name in together:
        assert open_artifact(pool.artifact("reports", name), "reports").name == name
        assert (pool.artifact("drafters", name) / "logs" / "csv" / "metrics.csv").is_file()
        assert f"wrote {pool.artifact('drafters', name)}" in done.out
    assert not list(pool.runs.glob("*/*/.*.partial"))
    single = (*SHARED, "overwrite=true")
    for (domain, name), lr in zip(names.items(), ("1e-2", "2e-2"), strict=True):
        assert "was trained before" in pool(*SHARED, f"domain={domain}", f"name={name}", f"trainer.lr={lr}").err
        with rising_lengths():
            done = pool(*single, f"domain={domain}", f"name={name}", f"trainer.lr={lr}")
        assert done.code == 0, done.err
        tensors, manifest = together[name]
        again = open_artifact(pool.artifact("drafters", name), "drafters")
        assert (again.config, again.parents, sorted(again.files)) == (
            manifest.config,
            manifest.parents,
            sorted(manifest.files),
        )
        assert any(value.any() for key, value in tensors.items() if "lora_B" in key)
        for key, value in adapter(pool, name).items():
            torch.testing.assert_close(tensors[key], value, rtol=1e-2, atol=1e-4)  # stored in bfloat16


@pytest.mark.slow
def test_studies_of_one_domain_have_their_settings_and_only_missing_ones_are_trained(pool):
    with rising_lengths():
        assert pool(*SHARED, "domain=sql", "name=narrow", "drafter.lora.rank=2").code == 0
        done = pool(*STUDIES)
    assert done.code == 0, done.err
    assert f"{pool.artifact('drafters', 'narrow')} was trained before" in done.err
    ranks = {
        name: {value.shape[0] for key, value in adapter(pool, name).items() if "lora_A" in key}
        for name in ("narrow", "wide")
    }
    assert ranks == {"narrow": {2}, "wide": {6}}


@pytest.mark.slow
def test_an_interrupted_training_of_several_continues(pool, monkeypatch, interrupt_again):
    from drafterforge.training import expert_checkpoints

    with monkeypatch.context() as patch:
        select = interrupt_again(expert_checkpoints.select_expert, 4)  # the second save
        patch.setattr(expert_checkpoints, "select_expert", select)
        done = pool(*STUDIES)
    assert "type the same command to continue" in done.one_line(130)
    assert "narrow" not in "".join(pool.finished())
    with rising_lengths():
        done = pool(*STUDIES)
    assert done.code == 0 and "resumed at step" in done.err, done.err


MISTAKES = {
    ("domain=[sql,math]", "trainer.lr=[1e-2,1e-3,1e-4]"): (
        "lists of several drafters need equally many entries, got domain= 2, trainer.lr= 3"
    ),
    ("domain=[sql,sql]",): "2 drafters would be called sql; type name=[sql-1,sql-2]",
    ("domain=sql", "drafter.lora.rank=[2,4]"): "2 drafters would be called sql; type name=[sql-1,sql-2]",
    ("domain=[sql,mth]",): "no domain named 'mth' in answers=general; did you mean math?",
    ("domain=[]",): "domain=[] has an empty entry; type domain=[A,B]",
    ("domain=[sql,math]", "trainer.max_steps=[4,8]"): "trainer.max_steps takes one value for all drafters of a run",
    ("domain=[sql,math]", "drafter=[lora,eagle3]"): "drafter takes one value for all drafters of a run",
    ("domain=[sql,math]", "drafter=eagle3"): "sql is no LoRA expert, and only LoRA experts of one generalist",
    ("domain=[sql,math]", "drafter=retrieval"): "sql-retrieval is no LoRA expert",
    ("domain=[sql,math]", "drafter=block", "drafter.tuning=lora", "drafter.init=general"): (
        "drafter=block trains one drafter a command; type drafter=lora, or one drafter a command"
    ),
    ("domain=[sql,math]", "trainer.devices=2", "trainer.accumulate=2"): "several drafters are trained on one device",
    ("domain=[sql,math]", "trainer.lr=[1e-2,fast]"): "trainer.lr must be a number, got 'fast'",
}


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_in_lists_ends_in_one_line(pool, words):
    drafter = () if any(word.startswith("drafter=") for word in words) else ("drafter=lora",)
    line = pool("train-drafter", "answers=general", *drafter, *words).one_line()
    assert MISTAKES[words] in line


def test_prompts_that_two_studies_would_answer_twice_are_refused(pool):
    line = pool("train-drafter", "drafter=lora", "domain=sql", "name=[a,b]", "trainer.lr=[1e-2,1e-3]").one_line()
    assert "both drafters need the same answers; make them first: `drafterforge prepare-data domain=sql" in line
    assert "`, then add answers=sql" in line


def test_experts_of_two_generalists_are_refused(pool):
    words = ("domain=general", "name=base", "answers=general", "drafter=eagle3", *SMOKE)
    assert pool("train-drafter", *words).code == 0
    line = pool(*SHARED, "domain=[sql,math]", "name=[a,b]", "drafter.init=[general,base]").one_line()
    assert "experts that are trained together add to one generalist, got a to general, b to base" in line
