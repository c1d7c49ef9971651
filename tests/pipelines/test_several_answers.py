"""Drafters that learn from several `answers` artifacts, from the command line on a tiny target."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.manifest import Manifest
from drafterforge.cli import main
from drafterforge.data.answers import AnswerSet
from drafterforge.drafters.retrieval.model import Datastore
from drafterforge.evaluation import held_out
from drafterforge.targets.fingerprint import fingerprint
from tests.pipelines.conftest import LEFT_OUT, PLAIN, SMOKE, Bench

pytestmark = pytest.mark.slow  # whole programs

ANSWERS = "answers=[grammar,natural]"
GENERAL = ("train-drafter", "domain=general", ANSWERS, *SMOKE)
LORA = ("drafter=lora", "drafter.lora.rank=4")
NATURAL = ("name=natural", "data=jsonl", "data.licences=[MIT]", "data.domain_names={code: python}")


@pytest.fixture(scope="module")
def answered(tmp_path_factory, tiny_folder) -> Path:
    """Runs with answers to prompts of the grammars, and to natural ones of sql and code."""
    folder = tmp_path_factory.mktemp("several")
    prepare = ("prepare-data", "domain=general", *LEFT_OUT, "experiment=smoke", "data.features=online")
    prepare += ("target=hf", f"target.model={tiny_folder}", "target.name=tiny", PLAIN, f"runs_dir={folder / 'runs'}")
    assert main([*prepare, "name=grammar"]) == 0
    lines = [
        {"prompt": f"{name} {i}", "domain": name, "licence": "MIT"} for i in range(100) for name in ("sql", "code")
    ]
    lines.append({"prompt": "not this", "domain": "sql", "licence": "GPL"})
    (folder / "lines").mkdir()
    (folder / "lines" / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert main([*prepare, *NATURAL, f"path={folder / 'lines'}"]) == 0
    return folder / "runs"


@pytest.fixture
def several(bench, answered) -> Bench:
    """A bench with a copy of those answers."""
    shutil.copytree(answered, bench.runs)
    return bench


def manifest_of(bench: Bench, name: str) -> Manifest:
    return open_artifact(bench.artifact("drafters", name), "drafters")


def parents(manifest: Manifest) -> list[tuple[str, str]]:
    return [(parent["kind"], parent["name"]) for parent in manifest.parents]


def test_natural_prompts_are_even_over_renamed_domains(several):
    answers = AnswerSet.open(several.artifact("answers", "natural"))
    assert answers.manifest.metrics["domains"] == {"python": 8, "sql": 8}
    assert Counter(row.domain for row in answers.rows("train")) == {"python": 4, "sql": 4}
    config = answers.manifest.config["data"]
    assert (config["licences"], config["domain_names"]) == (["MIT"], {"code": "python"})
    assert "domain_names" not in open_artifact(several.artifact("answers", "grammar"), "answers").config["data"]


def test_a_generalist_and_its_expert_learn_from_both_and_are_found_again(several):
    done = several(*GENERAL)
    assert done.code == 0, done.err
    digests = [Manifest.read(several.artifact("answers", name)).digest for name in ("grammar", "natural")]
    general = manifest_of(several, "general")
    assert parents(general) == [("answers", "grammar"), ("answers", "natural")]
    assert general.config["answers"] == digests and "num_answers" not in general.config["trainer"]
    assert {"tiny/features/grammar", "tiny/features/natural"} <= set(several.finished())
    report = open_artifact(several.artifact("reports", "general"), "reports")
    assert parents(report) == [("drafters", "general"), *parents(general)]
    assert "was trained before" in several(*GENERAL).err
    line = several(*GENERAL, "answers=grammar").one_line()
    assert "made with other settings (answers: [" in line and "name=OTHER" in line
    expert = ("train-drafter", "domain=sql", ANSWERS, *LORA, *SMOKE)
    assert several(*expert).code == 0
    assert parents(manifest_of(several, "sql")) == [*parents(general), ("drafters", "general")]
    quick = several("quickstart", ANSWERS, "experiment=smoke", "first_prompts=2", "first_tokens=6")
    assert quick.code == 0, quick.err
    about = json.loads((several.artifact("reports", "quickstart") / "report.json").read_text())["curves"]["quickstart"]
    assert about["train_prompts"] == 6  # sql has 2 of the grammars' 8, and 4 of the natural 8


@pytest.mark.parametrize("kind", ["retrieval", "causal_lm"])
def test_drafters_of_other_kinds_learn_from_their_domain_s_share_of_both(several, kind):
    done = several("train-drafter", "domain=sql", ANSWERS, f"drafter={kind}", "data.features=online", *SMOKE)
    assert done.code == 0, done.err
    manifest = manifest_of(several, f"sql-{kind}")
    assert (
        parents(manifest) == [("answers", "grammar"), ("answers", "natural")] and len(manifest.config["answers"]) == 2
    )
    assert manifest.metrics.get("sequences", 6) == 6
    assert not any("features" in name for name in several.finished())


def test_another_number_of_answers_is_another_drafter(several):
    brief = (*GENERAL, "data.features=online", "trainer.max_steps=2")
    assert several(*brief, "trainer.num_answers=5", "name=five").code == 0
    assert manifest_of(several, "five").config["trainer"]["num_answers"] == 5
    assert "trainer.num_answers: 5 there, null now" in several(*brief, "name=five").one_line()
    assert several(*brief, "drafter=retrieval", "trainer.num_answers=5", "name=store").code == 0
    assert manifest_of(several, "store").metrics["sequences"] == 5
    assert "num_answers: 5 there, null now" in several(*brief, "drafter=retrieval", "name=store").one_line()
    assert "has 16 training answers" in several(*brief, "trainer.num_answers=17", "name=more").one_line()


def test_a_datastore_adds_the_answers_that_its_parent_lacks(several):
    store = ("train-drafter", "domain=general", "drafter=retrieval", "data.features=online", *SMOKE)
    assert several(*store, "answers=grammar", "name=store").code == 0
    done = several(*store, ANSWERS, "drafter.init=store", "name=more")
    assert done.code == 0, done.err
    first, more = (Datastore.open(several.artifact("drafters", name)).sequences() for name in ("store", "more"))
    assert [text.tolist() for text in more[: len(first)]] == [text.tolist() for text in first]  # none is stored twice
    at_once = several(*store, ANSWERS, "name=at-once")
    assert at_once.code == 0
    joined = Datastore.open(several.artifact("drafters", "at-once")).sequences()
    assert sorted({text.tobytes() for text in more}) == sorted({text.tobytes() for text in joined})
    manifest = manifest_of(several, "more")
    assert parents(manifest)[-1] == ("drafters", "store")
    assert "parent: null there" in several(*store, ANSWERS, "drafter.init=store", "name=at-once").one_line()
    line = several(*store, ANSWERS, "drafter.init=nothing", "name=x").one_line()
    assert "nothing" in line and "name=" in line, line


@pytest.mark.parametrize("kind", ["eagle3", "retrieval", "causal_lm"])
def test_a_drafter_of_some_answers_is_validated_and_decoded_on_others(several, kind, monkeypatch):
    decoded, measure = [], held_out._measure
    monkeypatch.setattr(
        held_out, "_measure", lambda *arguments: (decoded.extend(arguments[-1]), measure(*arguments))[1]
    )
    named = f"val-{kind}"
    plain = ("train-drafter", "domain=general", "answers=grammar", f"drafter={kind}", "data.features=online", *SMOKE)
    done = several(*plain, "trainer.max_steps=2", "val_answers=natural", f"name={named}")
    assert done.code == 0, done.err
    manifest = manifest_of(several, named)
    sets = [AnswerSet.open(several.artifact("answers", name)) for name in ("grammar", "natural")]
    assert parents(manifest) == [("answers", "grammar"), ("answers", "natural")]
    assert manifest.config["answers"] == sets[0].manifest.digest
    assert decoded == [row.input_ids[: row.prompt_tokens] for row in sets[1].rows("test")[: len(decoded)]] != []
    if kind == "retrieval":
        assert manifest.metrics["sequences"] == len(sets[0].rows("train"))
        return
    assert manifest.config["val_answers"] == [sets[1].manifest.digest]
    assert "val_answers: [" in several(*plain, "trainer.max_steps=2", f"name={named}").one_line()


def test_missing_or_useless_val_answers_are_one_line(several):
    assert "no answers named 'nature'" in several(*GENERAL, "name=x", "val_answers=nature").one_line()
    line = several("quickstart", ANSWERS, "experiment=smoke", "val_answers=natural").one_line()
    assert line == "drafterforge: val_answers= is read by train-drafter only; leave it out"


def test_answers_of_another_target_or_named_twice_are_one_line(several, other_folder):
    foreign = ("prepare-data", "domain=sql", "experiment=smoke", "data.features=online", "name=foreign")
    assert several(*foreign, target=other_folder).code == 0
    line = several(*GENERAL, "answers=[grammar,foreign]").one_line()
    assert "answers/foreign was made for target 'tiny'" in line
    assert fingerprint(several.target) in line and fingerprint(other_folder) in line
    twice = f"answers=[grammar,{several.artifact('answers', 'grammar')}]"
    assert "two folders are called grammar" in several(*GENERAL, twice).one_line()
    line = several(*GENERAL, "answers=[grammar,nowhere]").one_line()
    assert "no answers named 'nowhere'" in line and "name=nowhere data=jsonl path=FILE" in line
    assert "answers=[grammar,nowhere] for several" in several(*GENERAL, "answers=grammar,nowhere").one_line()
    assert not any("drafters" in name for name in several.finished())
