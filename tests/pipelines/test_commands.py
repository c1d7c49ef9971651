"""Every command from end to end on a tiny target."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.manifest import Manifest
from drafterforge.config.commands import InspectConfig
from drafterforge.config.target import TargetConfig
from drafterforge.data.answers import AnswerSet
from drafterforge.data.joined import JoinedAnswers
from drafterforge.data.stream import DONE
from drafterforge.errors import ArtifactError
from drafterforge.interop.vllm.streaming import stream_folder
from drafterforge.openmp import WAIT_POLICY
from drafterforge.pipelines.inspect import find_by_name
from drafterforge.runtime.engine import Engine
from drafterforge.targets.load import load_target
from tests.pipelines.conftest import TRAIN

pytestmark = pytest.mark.slow  # whole programs

SETTINGS = ("domain=sql", "experiment=smoke")


def report_of(folder) -> dict:
    return json.loads((folder / "report.json").read_text())


def test_prepare_data_writes_answers_and_features_once(bench):
    done = bench("prepare-data", *SETTINGS)
    assert done.code == 0
    assert bench.finished() == ["tiny/answers/sql", "tiny/features/sql"]
    assert str(bench.artifact("answers")) in done.out and "drafterforge train-drafter domain=sql" in done.out
    before = {path: path.stat().st_mtime_ns for path in bench.runs.rglob("*") if path.is_file()}
    leftover = bench.artifact("features").with_name(".sql.spool-0123abcd-float16")  # of a run with another dtype
    leftover.mkdir()
    again = bench("prepare-data", *SETTINGS)
    assert again.code == 0 and "(made before)" in again.err and not leftover.exists()
    assert before == {path: path.stat().st_mtime_ns for path in bench.runs.rglob("*") if path.is_file()}


def test_prepare_data_online_writes_no_features(bench):
    assert bench("prepare-data", *SETTINGS, "data.features=online").code == 0
    assert bench.finished() == ["tiny/answers/sql"]


def test_answers_are_the_targets_tokens(trained):
    target = load_target(TargetConfig(source="hf", model=str(trained.target), dtype="float32"))
    answers = AnswerSet.open(trained.artifact("answers"), target.fingerprint)
    for row in answers.rows("test"):
        prompt = row.input_ids[: row.prompt_tokens]
        assert Engine(target).generate([prompt], 8)[0].tokens == row.input_ids[row.prompt_tokens :]


def test_train_drafter_leaves_a_drafter_and_a_report_without_mismatches(trained):
    manifest = open_artifact(trained.artifact("drafters"), "drafters")
    assert [parent["kind"] for parent in manifest.parents] == ["answers"]
    assert {"config.json", "model.safetensors", "curves.json", "logs/csv/metrics.csv"} <= manifest.files.keys()
    assert manifest.metrics.keys() == {"val_accept_length", "val_prompts", "best_step", "steps", "draft_vocab_coverage"}
    curve = json.loads((trained.artifact("drafters") / "curves.json").read_text())
    assert [point["step"] for point in curve] == [2, 4]
    open_artifact(trained.artifact("reports"), "reports")
    report = report_of(trained.artifact("reports"))
    assert report["rows"][0]["method"] == "autoregressive"
    assert len(report["rows"]) == 3 and {row["num_prompts"] for row in report["rows"]} == {2}
    assert [row["mismatches"] for row in report["rows"]] == [0, 0, 0]
    assert report["curves"]["mismatches"] == []
    assert not list(trained.runs.rglob(".*.partial"))


def test_a_second_train_drafter_only_decodes_and_prints_the_next_command(trained):
    before = (trained.artifact("drafters") / "manifest.json").read_bytes()
    done = trained(*TRAIN)
    assert done.code == 0 and "was trained before" in done.err and "step " not in done.err
    assert (trained.artifact("drafters") / "manifest.json").read_bytes() == before
    assert (
        "mismatches" in done.out and "eagle3 tree 6/2/2" in done.out and "…" not in done.out
    )  # complete, though the output is no terminal
    typed = done.out.splitlines()[-1].partition("next: drafterforge ")[2]
    assert typed.startswith("generate drafter=sql") and str(trained.target) in typed
    assert trained(*typed.split(), "max_new_tokens=3").code == 0


def test_other_settings_are_refused_unless_overwritten(trained):
    line = trained(*TRAIN, "trainer.lr=0.5").one_line()
    assert "trainer.lr" in line and "overwrite=true" in line and "name=OTHER" in line
    assert trained(*TRAIN, "trainer.lr=0.01", "overwrite=true").code == 0
    assert open_artifact(trained.artifact("drafters"), "drafters").config["trainer"]["lr"] == 0.01


def test_a_drafter_of_another_dtype_of_the_target_is_another(trained):
    line = trained(*TRAIN, "answers=sql", "target.dtype=bfloat16").one_line()
    assert 'made with other settings (dtype: "torch.float32" there, "torch.bfloat16" now)' in line


def test_a_drafter_that_starts_from_another_keeps_its_vocabulary_map(trained):
    done = trained("train-drafter", "domain=math", "experiment=smoke", "drafter.init=sql", "drafter.draft_vocab_size=9")
    assert done.code == 0
    assert "has the draft vocabulary of sql, 64 tokens, so drafter.draft_vocab_size=9 is not read" in done.err
    old, new = (load_file(trained.artifact("drafters", name) / "model.safetensors") for name in ("sql", "math"))
    assert torch.equal(old["d2t"], new["d2t"]) and torch.equal(old["t2d"], new["t2d"])
    assert not torch.equal(old["lm_head.weight"], new["lm_head.weight"])
    parents = open_artifact(trained.artifact("drafters", "math"), "drafters").parents
    assert [(parent["kind"], parent["name"]) for parent in parents] == [("answers", "math"), ("drafters", "sql")]


def test_a_drafter_can_keep_the_targets_head(trained):
    done = trained(*TRAIN, "drafter.head=target", "answers=sql", "name=kept", "trainer.max_steps=2")
    assert done.code == 0
    target, ours = (
        load_file(folder / "model.safetensors") for folder in (trained.target, trained.artifact("drafters", "kept"))
    )
    ids = ours["d2t"] + torch.arange(ours["d2t"].numel())
    assert torch.equal(ours["lm_head.weight"], target["lm_head.weight"][ids].bfloat16())


def test_with_the_targets_head_an_initialised_drafter_chooses_a_new_vocabulary(trained):
    done = trained(
        *TRAIN,
        "drafter.init=sql",
        "drafter.head=target",
        "drafter.draft_vocab_size=100",
        "answers=sql",
        "name=redrawn",
        "trainer.lr=1e-12",
        "trainer.max_steps=1",
    )
    assert done.code == 0, done.err
    target, old, new = (
        load_file(folder / "model.safetensors")
        for folder in (trained.target, trained.artifact("drafters", "sql"), trained.artifact("drafters", "redrawn"))
    )
    assert len(new["d2t"]) == 100 != len(old["d2t"])
    ids = new["d2t"] + torch.arange(100)
    assert torch.equal(new["lm_head.weight"], target["lm_head.weight"][ids].bfloat16())
    assert torch.equal(new["fc.weight"], old["fc.weight"])  # the layer's weights continue


def test_a_scratch_drafter_learns_from_online_features_and_named_answers(trained):
    done = trained(
        *TRAIN, "drafter.init=scratch", "data.features=online", "answers=sql", "name=other", "trainer.max_steps=2"
    )
    assert done.code == 0
    assert "tiny/answers/other" not in trained.finished() and "tiny/drafters/other" in trained.finished()


def test_general_mixes_the_domains(bench):
    assert bench("prepare-data", "domain=general", "experiment=smoke", "data.features=online").code == 0
    stats = json.loads((bench.artifact("answers", "general") / "stats.json").read_text())
    assert len(stats["domains"]) > 1
    with pytest.raises(ArtifactError, match=r"no val answers of translation; prepare it with data\.num_val=8 or more"):
        JoinedAnswers([AnswerSet.open(bench.artifact("answers", "general"))]).rows("val", "translation")


def test_data_from_a_jsonl_file(bench):
    path = bench.folder / "mine.jsonl"
    lines = [{"messages": [{"role": "user", "content": f"question {i}?"}]} for i in range(12)]
    path.write_text("\n".join(map(json.dumps, lines)))
    done = bench("prepare-data", "domain=medical", "data=jsonl", f"path={path}", "experiment=smoke")
    assert done.code == 0 and bench.finished() == ["tiny/answers/medical", "tiny/features/medical"]


@pytest.mark.parametrize("source", ["argument", "stdin"])
def test_generate_prints_what_the_engine_decodes_with_and_without_a_drafter(trained, source, monkeypatch):
    prompt = "Show {all} users=active, \u00fcber 'quoted'"
    target = load_target(TargetConfig(source="hf", model=str(trained.target), dtype="float32"))
    expected = Engine(target).generate([[{"role": "user", "content": prompt}]], 40)[0].tokens
    expected = target.tokenizer.decode(expected, skip_special_tokens=True)

    def generate(*arguments: str):
        monkeypatch.setattr("sys.stdin", io.StringIO(prompt))
        typed = [f"prompt={prompt}"] if source == "argument" else []
        return trained("generate", "max_new_tokens=40", *arguments, *typed)

    for arguments in (("drafter=",), ("drafter=sql",), ("drafter=sql", "runtime.num_tokens=9", "runtime.depth=3")):
        done = generate(*arguments)
        assert done.code == 0
        assert done.out == expected + "\n"
        first, last = done.err.splitlines()
        assert first == "loading tiny" and "40 tokens in " in last


def test_bfloat16_decoding_is_also_checked_in_float32(trained):
    assert trained(*TRAIN, "target.dtype=bfloat16", "name=half", "trainer.max_steps=2").code == 0
    report = report_of(trained.artifact("reports", "half"))
    assert report["dtype"] == "bfloat16"
    assert [(row["dtype"], row["numerics"]) for row in report["rows"]] == [
        ("bfloat16", "fast"),  # the fastest autoregressive mode, which speed-ups are over
        *[("bfloat16", "invariant")] * 3,
        *[("float32", "fast")] * 3,
    ]
    assert [row["mismatches"] for row in report["rows"]] == [0] * 7
    assert report["numerics"] == "invariant"


def test_inspect_finds_an_artifact_beside_a_folder_of_its_name(tmp_path, monkeypatch):
    drafter = tmp_path / "runs" / "tiny" / "drafters" / "sql"
    drafter.mkdir(parents=True)
    (drafter / "manifest.json").write_text("{}")
    (tmp_path / "sql").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_by_name(InspectConfig(path="sql")).resolve() == drafter
    (tmp_path / "sql" / "manifest.json").write_text("{}")
    assert find_by_name(InspectConfig(path="sql")) is None


def test_doctor_names_the_target_and_its_artifacts(trained):
    done = trained("doctor")
    assert done.code == 0
    assert str(trained.target) in done.out.replace("\n", "") and "fingerprint" in done.out
    rows = {line.split()[0]: line for line in done.out.splitlines() if line.split()}
    assert "sql" in rows["drafters"] and "sql" in rows["answers"]
    assert "cores" in rows["load"] and WAIT_POLICY.describe()[:40] in rows["threads"]


@pytest.mark.parametrize(("content", "reason"), [("{", "not JSON"), ("[]", "no JSON object"), ("\xff", "not JSON")])
def test_doctor_says_that_the_target_s_config_is_damaged(bench, tmp_path, content, reason):
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    done = bench("doctor", target=tmp_path)
    expected = f"{tmp_path / 'config.json'} is damaged ({reason}".replace(" ", "")
    assert done.code == 0 and expected in "".join(done.out.split()), done.err


def test_the_command_that_reads_a_stream_has_its_target(bench, monkeypatch):
    monkeypatch.setattr("drafterforge.pipelines.prepare_data.stream_answers", lambda cfg: cfg.data.stream)
    done = bench("prepare-data", "domain=sql", "data.stream=s")
    assert f"train-drafter domain=sql data.stream=s target=hf target.model={bench.target}" in done.out, done.err


def test_a_stream_has_no_name_is_not_overwritten_and_may_be_complete(bench, monkeypatch):
    monkeypatch.setattr("drafterforge.pipelines.prepare_data.stream_answers", stream_folder)
    folder = bench.folder / "ring"
    typed = ("prepare-data", "domain=sql", f"data.stream={folder}")
    assert "name=x is not read with data.stream=FOLDER; leave it out" in bench(*typed, "name=x").one_line()
    assert f"delete {folder} to stream again" in bench(*typed, "overwrite=true").one_line()
    assert f"wrote {folder}; its reader" in bench(*typed).out
    folder.mkdir()
    (folder / DONE).touch()
    assert f"{folder} is complete already; its reader" in bench(*typed).out


def test_doctor_prints_paths_as_they_are(bench, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(bench.folder / "[old]" / "[/old]"))
    done = bench("doctor", "runs_dir=runs[v2]")
    assert done.code == 0 and "none in runs[v2]" in done.out
    assert str(bench.folder / "[old]" / "[/old]") in "".join(done.out.split())


def test_doctor_names_the_key_of_a_target_that_is_not_named(capsys):
    from drafterforge.cli import main

    assert main(["doctor", "target=hf"]) == 0
    assert "target.model is empty; type target.model=FOLDER_OR_HUB_ID" in capsys.readouterr().out


def test_doctor_names_bundles(trained):
    assert trained("export", "bundle=house").code == 0
    rows = {line.split()[0]: line for line in trained("doctor").out.splitlines() if line.split()}
    assert "house" in rows["bundles"]


def test_doctor_changes_nothing(bench, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(bench.folder / "cache"))
    assert bench("doctor").code == 0
    assert not list(bench.folder.iterdir())


@pytest.mark.parametrize("origin", ["x", {"kind": "a"}, {"kind": 1, "name": "b", "sha256": "c"}], ids=str)
def test_inspect_leaves_out_a_forged_origin(trained, origin, capsys):
    from drafterforge.cli import main

    folder = trained.artifact("drafters")
    manifest = Manifest.read(folder)
    (folder / "manifest.json").write_bytes(replace(manifest, config=manifest.config | {"origin": origin}).to_json())
    capsys.readouterr()
    assert main(["inspect", str(folder)]) == 0
    output = capsys.readouterr().out
    assert "sql: all files undamaged" in output and "trained further" not in output


@pytest.mark.parametrize("kind", ["answers", "features", "drafters", "reports"])
def test_inspect_prints_every_kind(trained, kind, capsys):
    from drafterforge.cli import main

    capsys.readouterr()
    assert main(["inspect", str(trained.artifact(kind))]) == 0
    output = capsys.readouterr().out
    assert f"{kind} sql: all files undamaged" in output and "tiny" in output
    if kind == "drafters":
        assert "parent" in output and "answers=" not in output and "null" not in output
        length = Manifest.read(trained.artifact(kind)).metrics["val_accept_length"]
        assert f"val_accept_length={length:.5g}" in output and "trainer.min_lr_ratio=0.05" in output


def test_a_path_of_nothing_is_told_without_loading_torch(tmp_path):
    code = (
        "import sys; from drafterforge.pipelines import inspect\n"
        f"try: inspect.run(inspect.Config(path={str(tmp_path / 'x')!r}))\n"
        "except Exception as error: print(type(error).__name__, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "ArtifactError False\n", done.stderr
