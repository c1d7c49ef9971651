"""A registered drafter kind of another package works with every command."""

from __future__ import annotations

import json

import pytest

import drafterforge
from drafterforge.artifacts.folder import open_artifact
from drafterforge.bundle.record import read_record
from tests.drafters.medusa import MedusaKind
from tests.drafters.registering import registered

pytestmark = pytest.mark.slow  # whole programs

TRAIN = ("train-drafter", "domain=sql", "experiment=smoke", "answers=sql", "drafter=bigram", "eval.num_prompts=2")
ASK = ("generate", "prompt=How many?", "max_new_tokens=8", "colour=never")
POOL = "pool.drafters=[sql,sql-bigram,retrieval]"


@pytest.fixture
def bigram_bench(trained):
    """A bench with a registered bigram kind and a trained EAGLE-3 drafter."""
    with registered():
        yield trained


def rows_of(bench, name: str) -> list[dict]:
    return json.loads((bench.artifact("reports", name) / "report.json").read_text())["rows"]


def test_a_registered_kind_is_trained_decoded_bundled_and_evaluated(bigram_bench):
    done = bigram_bench(*TRAIN, "drafter.smoothing=0.5")
    assert done.code == 0, done.err
    manifest = open_artifact(bigram_bench.artifact("drafters", "sql-bigram"), "drafters")
    assert manifest.config["drafter"] == {"kind": "bigram", "smoothing": 0.5} and manifest.metrics["pairs"] > 100
    rows = rows_of(bigram_bench, "sql-bigram")
    assert [row["mismatches"] for row in rows] == [0] * len(rows) and rows[-1]["method"].startswith("bigram tree")
    assert "trained before" in bigram_bench(*TRAIN, "drafter.smoothing=0.5").err
    assert "type overwrite=true" in bigram_bench(*TRAIN).one_line()

    plain = bigram_bench(*ASK)
    for drafter in (("drafter=sql-bigram",), ("drafter=pool", POOL)):
        assert bigram_bench(*ASK, *drafter).out == plain.out

    done = bigram_bench("export", "bundle=house", POOL)
    assert done.code == 0, done.err
    folder = bigram_bench.artifact("bundles", "house")
    kinds = {entry.name: entry.kind for entry in read_record(folder).drafters}
    assert kinds == {"sql": "eagle3", "sql-bigram": "bigram", "retrieval": "retrieval"}
    assert (
        bigram_bench(*ASK, "bundle=house").out
        == bigram_bench(*ASK, "bundle=house", "drafter=sql-bigram").out
        == plain.out
    )
    assert drafterforge.open(folder, dtype="float32", drafter="pool").runtime.drafter.names == list(kinds)

    suite = ("eval", "suite=domains", "experiment=smoke", "suite.domains=[sql]", "suite.num_prompts=3", POOL)
    methods = ("suite.methods=[sql-bigram,pool]", "suite.selectors=[hedgespec]", "suite.tuning_prompts=0")
    done = bigram_bench(*suite, *methods, "suite.timed_prompts=3")  # it also compares replayed cycles with live ones
    assert done.code == 0, done.err
    live = [row for row in rows_of(bigram_bench, "domains") if row["source"] == "live"]
    assert {row["method"] for row in live} >= {"sql-bigram alone", "hedgespec over the pool"}
    assert all(row["mismatches"] == 0 for row in live)


def test_a_registered_neural_kind_is_trained_on_features_and_decodes_losslessly(trained):
    with registered(MedusaKind()):
        done = trained(*(part.replace("bigram", "medusa") for part in TRAIN), "drafter.num_heads=2")
        assert done.code == 0, done.err
        manifest = open_artifact(trained.artifact("drafters", "sql-medusa"), "drafters")
        assert manifest.config["drafter"] == {"kind": "medusa", "num_heads": 2}
        assert manifest.metrics["val_accept_length"] >= 1
        rows = rows_of(trained, "sql-medusa")
        assert [row["mismatches"] for row in rows] == [0] * len(rows) and rows[-1]["method"].startswith("medusa tree")
        plain = trained(*ASK)
        for drafter in (("drafter=sql-medusa",), ("drafter=pool", "pool.drafters=[sql,sql-medusa,retrieval]")):
            assert trained(*ASK, *drafter).out == plain.out


def test_mistakes_are_one_line(bigram_bench):
    message = bigram_bench(*TRAIN, "drafter.smoothin=0.5").one_line()
    assert "did you mean drafter.smoothing?" in message
    assert bigram_bench(*TRAIN).code == 0
    assert (
        "is a bigram drafter, which format=vllm cannot hold; no format for other programs holds such drafters"
        in bigram_bench("export", "format=vllm", "drafter=sql-bigram").one_line()
    )
