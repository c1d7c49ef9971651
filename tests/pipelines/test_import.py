"""`import` from the command line on a tiny target: a head of another program becomes a drafter that decodes."""

from __future__ import annotations

import json

import pytest

from drafterforge.artifacts.folder import open_artifact
from drafterforge.interop.vllm.layouts import write_vllm
from tests.bundle.builders import edit, facts_of, random_drafter

pytestmark = pytest.mark.slow  # whole programs

PROMPT = "prompt=SELECT a FROM t"


@pytest.fixture
def head(tmp_path, tiny_folder):
    """A head in speculators' layout, norm before residual, as they are published."""
    folder = tmp_path / "Head-Of-Others"
    folder.mkdir()
    facts = facts_of(tiny_folder)
    write_vllm(folder, random_drafter(facts, norm_before_residual=True), facts, folder)
    return folder


def test_an_imported_head_decodes_the_targets_own_text(bench, head):
    done = bench("import", f"path={head}")
    assert (done.code, "wrote " in done.out) == (0, True) and "embed_tokens.weight equals the target's" in done.err
    path = bench.artifact("drafters", "head-of-others")
    manifest = open_artifact(path, "drafters")
    assert manifest.parents == [] and manifest.config["drafter"]["kind"] == "eagle3"
    imported = manifest.config["imported"]
    assert (imported["from"], imported["format"], len(imported["files"])) == (str(head), "speculators", 2)
    assert json.loads((path / "config.json").read_text())["norm_before_residual"] is True
    settings = ("target.dtype=float32", "max_new_tokens=12", PROMPT)
    plain = bench("generate", "drafter=", *settings)
    drafted = bench("generate", "drafter=head-of-others", *settings)
    assert (drafted.code, drafted.out) == (0, plain.out) and "drafted nodes accepted" in drafted.err


@pytest.mark.parametrize(("name", "reason"), [("sql+v2", "has a +"), ("auto", "is reserved"), ("my head", "no name")])
def test_a_folder_whose_name_no_drafter_can_have_needs_a_name(bench, head, tmp_path, name, reason):
    line = bench("import", f"path={head.rename(tmp_path / name)}").one_line()
    assert f"name={name}" in line.replace("'", "") and reason in line


def test_a_second_import_is_skipped_and_another_head_of_that_name_refused(bench, head):
    assert bench("import", f"path={head}", "name=one").code == 0
    assert "was imported from these files before" in bench("import", f"path={head}", "name=one").out
    edit(head, norm_before_residual=False)
    assert "type overwrite=true" in bench("import", f"path={head}", "name=one").one_line()
    assert "wrote " in bench("import", f"path={head}", "name=one", "overwrite=true").out


def test_an_import_with_other_settings_is_no_repetition(bench, head):
    edit(head, norm_before_residual=...)
    typed = ("import", f"path={head}", "name=head")
    assert bench(*typed, "norm_before_residual=false").code == 0
    assert "type overwrite=true" in bench(*typed, "norm_before_residual=true").one_line()
    assert "was imported from these files before" in bench(*typed, "norm_before_residual=false").out
    edit(head, eagle_aux_hidden_state_layer_ids=...)
    layers = ("layer_ids=[2,3,4]", "norm_before_residual=true", "overwrite=true")
    assert "wrote " in bench(*typed, *layers).out
    moved = ("layer_ids=[1,2,3]", "target.taps=[1,2,3]", "norm_before_residual=true")
    assert "type overwrite=true" in bench(*typed, *moved).one_line()


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ([], "import needs a head: type path=FOLDER"),
        (["path=./none"], "is no folder and no hub id"),
        (["path=HEAD", "format=vllm"], "format must be one of auto, eagle3, speculators, got 'vllm'"),
        (["path=HEAD", "format=eagle3"], "type format=speculators"),
        (["path=HEAD", "layer_ids=[1,2]"], "layer_ids must be three layers, got [1, 2]"),
        (["path=HEAD", "name=pool"], "name=pool is reserved"),
        (["path=HEAD", "norm_before_residual=false"], "has norm_before_residual=true"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(bench, head, typed, line):
    done = bench("import", *(argument.replace("HEAD", str(head)) for argument in typed))
    assert line in done.one_line() and bench.finished() == []


def test_a_head_that_is_not_imported_names_the_import_command(bench, head):
    done = bench("generate", f"drafter={head}", PROMPT)
    assert f"type `drafterforge import path={head} target=hf" in done.one_line()


def test_a_head_of_other_layers_needs_typed_taps_and_its_bundle_stores_them(bench, head):
    edit(head, eagle_aux_hidden_state_layer_ids=[1, 3, 5])
    taps = "target.taps=[1,3,5]"
    assert f"reads the inputs of layers [1, 3, 5], but the target is tapped at [2, 3, 4]; type {taps}" in (
        bench("import", f"path={head}").one_line()
    )
    printed = bench("import", f"path={head}", taps).out
    assert f"generate drafter=head-of-others target=hf target.model={bench.target} target.name=tiny " in printed
    assert "target.taps='[1,3,5]'" in printed  # a shell expands unquoted brackets
    settings = ("target.dtype=float32", "max_new_tokens=12", PROMPT)
    plain = bench("generate", "drafter=", *settings).out
    assert f"type {taps}, or train" in bench("generate", "drafter=head-of-others", *settings).one_line()
    drafted = bench("generate", "drafter=head-of-others", taps, *settings)
    assert (drafted.code, drafted.out) == (0, plain)
    further = ("train-drafter", "domain=sql", "experiment=smoke", "drafter.init=head-of-others", "name=further")
    assert f"type {taps}, or train" in bench(*further).one_line() and "tiny/drafters/further" not in bench.finished()
    assert bench("export", "pool.drafters=[head-of-others]", "licence=MIT", "bundle=house", taps).code == 0
    bundled = bench("generate", f"bundle={bench.artifact('bundles', 'house')}", *settings)
    assert (bundled.code, bundled.out) == (0, plain)
