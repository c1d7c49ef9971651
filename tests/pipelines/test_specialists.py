"""`train-drafter` with drafter=causal_lm and drafter=retrieval: artifacts, reports, resumption and mistakes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

import drafterforge
from drafterforge.artifacts.folder import open_artifact
from drafterforge.assembly.runs import open_for_decoding
from drafterforge.cli import main
from drafterforge.config.target import TargetConfig
from drafterforge.data.answers import AnswerSet
from drafterforge.drafters.causal_lm import model as causal_lm
from drafterforge.drafters.causal_lm.small import SmallLM
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.train.module import DistillModule
from drafterforge.drafters.retrieval import model as retrieval
from drafterforge.drafters.retrieval.kind import answer_texts
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.targets.fingerprint import fingerprint
from drafterforge.targets.load import load_target
from tests.pipelines.conftest import PLAIN, TRAIN, Bench, empty_charts, rising_lengths

pytestmark = pytest.mark.slow  # many short tests

LM, STORE = (*TRAIN, "drafter=causal_lm"), (*TRAIN, "drafter=retrieval")
BRIEF = ("eval.num_prompts=1", "eval.max_new_tokens=2", "eval.chain=false")
ASK = ("generate", "prompt=Which users are active?", "max_new_tokens=12")


@pytest.fixture(scope="session")
def specialist_runs(tmp_path_factory, trained_runs, tiny_folder) -> Path:
    """Runs of `train-drafter` with every kind of drafter, on the same answers."""
    runs = tmp_path_factory.mktemp("specialists") / "runs"
    shutil.copytree(trained_runs, runs)
    hf = ("target=hf", f"target.model={tiny_folder}", "target.name=tiny", PLAIN)
    with empty_charts():
        assert main([*LM, *hf, f"runs_dir={runs}"]) == 0
        assert main([*STORE, *hf, f"runs_dir={runs}"]) == 0
    return runs


@pytest.fixture
def specialists(bench, specialist_runs) -> Bench:
    """A bench with a copy of those runs."""
    shutil.copytree(specialist_runs, bench.runs)
    return bench


def opened(bench: Bench, name: str) -> object:
    """The drafter that `open_for_decoding` returns."""
    return open_for_decoding(
        bench.artifact("drafters", name),
        load_target(TargetConfig(source="hf", model=str(bench.target), dtype="float32")),
    )


def test_both_kinds_learn_from_the_domain_s_answers_and_are_measured(specialists):
    assert [name for name in specialists.finished() if "answers" in name] == ["tiny/answers/sql"]
    expected = {
        "causal_lm": {"val_accept_length", "val_prompts", "best_step", "steps"},
        "retrieval": {"sequences", "tokens"},
    }
    for kind, metrics in expected.items():
        manifest = open_artifact(specialists.artifact("drafters", f"sql-{kind}"), "drafters")
        assert [(parent["kind"], parent["name"]) for parent in manifest.parents] == [("answers", "sql")]
        assert manifest.metrics.keys() == metrics and manifest.config["drafter"]["kind"] == kind
        report = json.loads((specialists.artifact("reports", f"sql-{kind}") / "report.json").read_text())
        methods = [row["method"] for row in report["rows"]]
        assert methods == ["autoregressive", f"{kind} chain 3/2/1", f"{kind} tree 6/2/2"]
        assert [row["mismatches"] for row in report["rows"]] == [0, 0, 0]
    files = open_artifact(specialists.artifact("drafters", "sql-causal_lm"), "drafters").files
    assert {"config.json", "model.safetensors", "tokenizer.json", "curves.json", "logs/csv/metrics.csv"} <= files.keys()
    assert not list(specialists.runs.rglob(".*.partial"))


def test_any_kind_opens_by_its_manifest(specialists):
    assert isinstance(opened(specialists, "sql"), FusedDrafter)
    model, retrieval = opened(specialists, "sql-causal_lm"), opened(specialists, "sql-retrieval")
    assert isinstance(model, SmallLM) and model.model.config.num_hidden_layers == 2
    assert isinstance(retrieval, Retrieval) and retrieval.datastore.num_sequences == 8


@pytest.mark.parametrize("name", ["sql-retrieval", "sql-causal_lm"])
def test_generate_prints_the_target_s_text_whichever_drafts(specialists, name):
    expected = specialists(*ASK, "drafter=").out
    assert specialists(*ASK, f"drafter={name}").out == expected
    assert specialists(*ASK, f"drafter={specialists.artifact('drafters', name)}").out == expected


def test_a_bundle_holds_drafters_of_every_kind(specialists):
    expected = specialists(*ASK, "drafter=").out
    done = specialists("export", "bundle=all", "pool.selector=ucb1")
    assert done.code == 0, done.err
    engine = drafterforge.open(specialists.artifact("bundles", "all"), dtype="float32")
    kinds = {name: type(drafter) for name, drafter in engine.runtime.drafter.drafters.items()}
    assert kinds == {"sql": FusedDrafter, "sql-causal_lm": SmallLM, "sql-retrieval": Retrieval, "retrieval": Retrieval}
    for name in ("", *kinds):
        assert specialists(*ASK, "bundle=all", *([f"drafter={name}"] if name else [])).out == expected, name
    exported = specialists("export", "bundle=all", "format=sglang")
    assert exported.code == 0 and exported.err.count("wrote") == 1, exported.err


@pytest.mark.parametrize("command", [STORE, LM])
def test_the_same_command_trains_nothing_again_and_other_settings_are_refused(specialists, command):
    done = specialists(*command, *BRIEF)
    kind = command[-1].partition("=")[2]
    assert done.code == 0 and "was trained before" in done.err
    assert f"next: drafterforge generate drafter=sql-{kind}" in done.out
    setting = "trainer.lr=0.5" if command is LM else "answers=other"
    if command is STORE:
        specialists("prepare-data", "domain=sql", "name=other", "experiment=smoke", "data.num_train=9")
    assert "was made with other settings" in specialists(*command, setting).one_line()


def test_a_datastore_needs_no_features_and_holds_answers_with_the_end_of_their_prompts(bench):
    assert bench(*STORE, *BRIEF, "name=mine").code == 0
    assert bench.finished() == ["tiny/answers/mine", "tiny/drafters/mine", "tiny/reports/mine"]
    assert not list(bench.runs.glob("tiny/features/.*"))
    rows = AnswerSet.open(bench.artifact("answers", "mine")).rows("train")
    texts = [text.tolist() for text in answer_texts(rows, 5)]
    assert texts == [row.input_ids[row.prompt_tokens - 5 :] for row in rows]


def test_training_continues_another_small_lm(specialists):
    done = specialists(*LM, *BRIEF, "drafter.init=sql-causal_lm", "name=further", "answers=sql", "trainer.max_steps=2")
    assert done.code == 0
    parents = open_artifact(specialists.artifact("drafters", "further"), "drafters").parents
    assert [(parent["kind"], parent["name"]) for parent in parents] == [
        ("answers", "sql"),
        ("drafters", "sql-causal_lm"),
    ]
    with rising_lengths(by=-1):
        done = specialists(*LM, *BRIEF, "drafter.init=sql-causal_lm", "name=same", "answers=sql")
    assert done.code == 0 and "training did not improve on the weights it started from" in done.err
    before, after = (specialists.artifact("drafters", name) / "model.safetensors" for name in ("sql-causal_lm", "same"))
    assert before.read_bytes() == after.read_bytes()
    line = specialists(*LM, "drafter.init=sql", "name=odd", "answers=sql").one_line()
    assert "is a drafter of kind eagle3" in line and "leave drafter.init out" in line


# Kills.


@pytest.mark.parametrize(
    ("owner", "name", "call", "command"),
    [
        (DistillModule, "training_step", 4, LM),
        (causal_lm, "save_file", 1, LM),
        (retrieval, "save_file", 1, STORE),
    ],
)
def test_an_interrupted_run_started_again_gives_the_same_drafter(
    trained, specialist_runs, monkeypatch, interrupt_again, owner, name, call, command
):
    drafter = trained.artifact("drafters", f"sql-{command[-1].partition('=')[2]}")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupt_again(getattr(owner, name), call))
        assert "interrupted; finished work is kept" in trained(*command).one_line(130)
    assert not drafter.exists()
    assert trained(*command, *BRIEF).code == 0
    full = specialist_runs / drafter.relative_to(trained.runs)
    for file in (path.name for path in full.iterdir() if path.is_file() and path.name != "manifest.json"):
        assert (drafter / file).read_bytes() == (full / file).read_bytes(), file
    assert not list(trained.runs.rglob(".*.partial"))


# Mistakes.


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("drafter.kind=retrieval",), "drafter.kind is set by drafter=; type drafter=retrieval"),
        (("drafter=eagle4",), "no drafter named 'eagle4'; did you mean drafter=eagle3?"),
        (("drafter=retrieval", "name=retrieval"), "type name=OTHER"),
        (("drafter=causal_lm", "drafter.causal_lm.num_layers=0"), "drafter.causal_lm.num_layers must be >= 1"),
        (("drafter=causal_lm", "drafter.causal_lm.num_layers=9"), "copies 9 layers of the target, which has 7"),
        (("drafter=causal_lm", "drafter.causal_lm.hidden_size=16"), "type drafter.init=scratch"),
        (("drafter=causal_lm", "drafter.causal_lm.num_heads=3"), "does not split into 3 heads"),
        (
            (
                "drafter=causal_lm",
                "drafter.init=scratch",
                "drafter.causal_lm.hidden_size=16",
                "drafter.causal_lm.train_embeddings=false",
            ),
            "type drafter.causal_lm.train_embeddings=true",
        ),
        (
            ("drafter=causal_lm", "drafter.tuning=lora", "drafter.init=sql"),
            "drafter=causal_lm has no key drafter.tuning; drafter=eagle3, drafter=block have",
        ),
        (("drafter=causal_lm", "drafter.init=nowhere"), "no drafters named 'nowhere'"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_drafter(trained, arguments, expected):
    before = trained.finished()
    assert expected in trained(*TRAIN, *arguments).one_line()
    assert trained.finished() == before


def test_a_missing_specialist_names_the_command_that_makes_it(trained):
    line = trained(*ASK, "drafter=math-retrieval").one_line()
    assert "drafterforge train-drafter domain=math drafter=retrieval" in line


@pytest.mark.parametrize("kind", ["causal_lm", "retrieval"])
def test_a_drafter_for_another_target_or_a_damaged_one_is_refused(specialists, other_folder, kind):
    line = specialists(*ASK, f"drafter=sql-{kind}", target=other_folder).one_line()
    assert fingerprint(specialists.target) in line and fingerprint(other_folder) in line
    path = next(specialists.artifact("drafters", f"sql-{kind}").glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    assert "is damaged" in specialists(*ASK, f"drafter=sql-{kind}").one_line()


def test_a_small_lm_with_another_tokenizer_is_refused(specialists):
    folder = shutil.copytree(specialists.target, specialists.folder / "other")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    line = specialists(*ASK, f"drafter={folder}").one_line()
    assert "has another tokenizer" in line and "'a'" in line


def test_weights_are_bfloat16_and_the_target_s_embeddings_stay(specialists):
    ours = load_file(specialists.artifact("drafters", "sql-causal_lm") / "model.safetensors")
    theirs = load_file(specialists.target / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert ours[name].equal(theirs[name].bfloat16())
