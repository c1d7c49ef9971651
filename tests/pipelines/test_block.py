"""A block drafter and a LoRA expert of it through every command."""

from __future__ import annotations

import json

import pytest

import drafterforge
from drafterforge.artifacts.folder import open_artifact
from drafterforge.bundle.record import read_record

pytestmark = pytest.mark.slow  # whole programs

TRAIN = ("train-drafter", "domain=sql", "experiment=smoke", "answers=sql", "eval.num_prompts=2", "drafter=block")
ASK = ("generate", "prompt=How many?", "max_new_tokens=8", "colour=never")
POOL = "pool.drafters=[sql,general-block,sql-block,retrieval]"


def rows_of(bench, name: str) -> list[dict]:
    return json.loads((bench.artifact("reports", name) / "report.json").read_text())["rows"]


def test_a_block_drafter_and_its_expert_are_trained_decoded_bundled_and_evaluated(trained):
    heads = ("drafter.markov_rank=4", "drafter.confidence=true", "drafter.position_weights=dpace")
    done = trained(*TRAIN, "name=general-block", "drafter.block_size=4", *heads)
    assert done.code == 0, done.err
    done = trained(*TRAIN, "drafter.tuning=lora", "drafter.init=general-block", "drafter.lora.rank=2")
    assert done.code == 0, done.err
    manifest = open_artifact(trained.artifact("drafters", "sql-block"), "drafters")
    assert ("drafters", "general-block") in [(parent["kind"], parent["name"]) for parent in manifest.parents]
    assert manifest.metrics["val_accept_length"] >= 1
    for name in ("general-block", "sql-block"):
        rows = rows_of(trained, name)
        assert [row["mismatches"] for row in rows] == [0] * len(rows) and rows[-1]["method"].startswith("block tree")
    assert "trained before" in trained(*TRAIN, "name=general-block", "drafter.block_size=4", *heads).err
    longer = (*TRAIN, "drafter.init=general-block", "name=longer", "drafter.block_size=6")
    assert "drafter.block_size=6 differs from 4 of drafter.init=general-block" in trained(*longer).one_line()

    plain = trained(*ASK)
    for drafter in (
        ("drafter=sql-block",),
        ("drafter=sql-block+retrieval",),
        ("drafter=pool", POOL),
        ("drafter=auto",),
    ):
        assert trained(*ASK, *drafter).out == plain.out

    done = trained("export", "bundle=house", POOL)
    assert done.code == 0, done.err
    folder = trained.artifact("bundles", "house")
    kinds = {entry.name: entry.kind for entry in read_record(folder).drafters}
    assert kinds == {"sql": "eagle3", "general-block": "block", "sql-block": "block", "retrieval": "retrieval"}
    assert trained(*ASK, "bundle=house").out == trained(*ASK, "bundle=house", "drafter=sql-block").out == plain.out
    assert drafterforge.open(folder, dtype="float32", drafter="pool").runtime.drafter.names == list(kinds)

    suite = ("eval", "suite=domains", "experiment=smoke", "suite.domains=[sql]", "suite.num_prompts=3", POOL)
    methods = ("suite.methods=[sql-block,pool]", "suite.selectors=[hedgespec]", "suite.tuning_prompts=0")
    done = trained(*suite, *methods, "suite.timed_prompts=3")  # it also compares replayed cycles with live ones
    assert done.code == 0, done.err
    live = [row for row in rows_of(trained, "domains") if row["source"] == "live"]
    assert {row["method"] for row in live} >= {"sql-block alone", "hedgespec over the pool"}
    assert all(row["mismatches"] == 0 for row in live)


def test_a_block_drafter_of_five_layers_is_trained_decoded_and_bundled(trained):
    taps = "target.taps=[0,1,2,3,5]"
    done = trained(*TRAIN, "name=five", taps, "overwrite=true")
    assert done.code == 0, done.err
    assert trained(*ASK, "drafter=five", taps).out == trained(*ASK, "drafter=").out
    assert f"type {taps}, or train" in trained(*ASK, "drafter=five").one_line()
    assert trained("export", "bundle=five", "pool.drafters=[five,retrieval]", taps).code == 0
    assert trained(*ASK, f"bundle={trained.artifact('bundles', 'five')}").out == trained(*ASK, "drafter=").out
    refusal = trained(*TRAIN[:-1], "drafter=eagle3", "name=other", taps).one_line()
    assert "drafter=eagle3 reads 3 layers of the target, but target.taps names 5; type drafter=block" in refusal


def test_mistakes_are_one_line(trained):
    assert "drafter.block_size must be >= 2" in trained(*TRAIN, "drafter.block_size=1").one_line()
    assert "type drafter.markov_rank=64" in trained(*TRAIN, "drafter.confidence=true").one_line()
    assert "position_weights must be one of decay, dpace" in trained(*TRAIN, "drafter.position_weights=sum").one_line()
    assert "type drafter.init=warm" in trained(*TRAIN, "drafter.init=auto").one_line()
    message = trained(*TRAIN, "drafter.tuning=lora", "drafter.init=sql").one_line()
    assert "is a drafter of kind eagle3" in message
