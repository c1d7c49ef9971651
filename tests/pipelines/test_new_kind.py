"""A kind that the package does not come with goes through every command once it is registered."""

from __future__ import annotations

import json

import pytest

import drafterforge
from drafterforge.artifacts.folder import open_artifact
from drafterforge.bundle.record import read_record
from tests.drafters.bigram import registered

pytestmark = pytest.mark.slow  # whole programs

TRAIN = ("train-drafter", "domain=sql", "experiment=smoke", "answers=sql", "drafter=bigram", "eval.num_prompts=2")
ASK = ("generate", "prompt=How many?", "max_new_tokens=8", "colour=never")
POOL = "pool.drafters=[sql,sql-bigram,retrieval]"


@pytest.fixture
def known(trained):
    """A bench on which the kind is known and an EAGLE-3 drafter is trained."""
    with registered():
        yield trained


def rows_of(bench, name: str) -> list[dict]:
    return json.loads((bench.artifact("reports", name) / "report.json").read_text())["rows"]


def test_it_is_trained_generates_is_bundled_and_evaluated(known):
    done = known(*TRAIN, "drafter.smoothing=0.5")
    assert done.code == 0, done.err
    manifest = open_artifact(known.artifact("drafters", "sql-bigram"), "drafters")
    assert manifest.config["drafter"] == {"kind": "bigram", "smoothing": 0.5} and manifest.metrics["pairs"] > 100
    rows = rows_of(known, "sql-bigram")
    assert [row["mismatches"] for row in rows] == [0] * len(rows) and rows[-1]["method"].startswith("bigram tree")
    assert "trained before" in known(*TRAIN, "drafter.smoothing=0.5").err
    assert "type overwrite=true" in known(*TRAIN).one_line()

    plain = known(*ASK)
    for drafter in (("drafter=sql-bigram",), ("drafter=pool", POOL)):
        assert known(*ASK, *drafter).out == plain.out

    done = known("export", "bundle=house", POOL)
    assert done.code == 0, done.err
    folder = known.artifact("bundles", "house")
    kinds = {entry.name: entry.kind for entry in read_record(folder).drafters}
    assert kinds == {"sql": "eagle3", "sql-bigram": "bigram", "retrieval": "retrieval"}
    assert known(*ASK, "bundle=house").out == known(*ASK, "bundle=house", "drafter=sql-bigram").out == plain.out
    assert drafterforge.open(folder, dtype="float32", drafter="pool").runtime.drafter.names == list(kinds)

    suite = ("eval", "suite=domains", "experiment=smoke", "suite.domains=[sql]", "suite.num_prompts=3", POOL)
    methods = ("suite.methods=[sql-bigram,default]", "suite.selectors=[hedgespec]", "suite.tuning_prompts=0")
    done = known(*suite, *methods, "suite.timed_prompts=3")  # it also compares replayed cycles with live ones
    assert done.code == 0, done.err
    live = [row for row in rows_of(known, "domains") if row["source"] == "live"]
    assert {row["method"] for row in live} >= {"sql-bigram alone", "hedgespec over the pool"}
    assert all(row["mismatches"] == 0 for row in live)


def test_mistakes_are_one_line(known):
    message = known(*TRAIN, "drafter.smoothin=0.5").one_line()
    assert "did you mean drafter.smoothing?" in message
    assert known(*TRAIN, "data.num_train=4").code == 0
    assert (
        "is a bigram drafter; only EAGLE-3 drafters" in known("export", "format=vllm", "drafter=sql-bigram").one_line()
    )
