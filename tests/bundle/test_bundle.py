"""An opened bundle holds the parts that were written, and equal parts give equal bytes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from functools import partial

import pytest
import torch

import drafterforge
from drafterforge.artifacts.atomic import file_sha256
from drafterforge.assembly import pools
from drafterforge.assembly.bundles import check_bundle, locate, open_bundle
from drafterforge.bundle import archive
from drafterforge.bundle import record as records
from drafterforge.bundle.archive import pack
from drafterforge.bundle.card import model_card
from drafterforge.bundle.record import BUNDLE, read_record
from drafterforge.bundle.write import write_bundle
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.checkpoint import load_full
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.lora import load_adapter, merge
from drafterforge.drafters.hybrid.model import HybridDrafter
from drafterforge.drafters.retrieval.model import Retrieval
from drafterforge.errors import ArtifactError, ConfigError, DrafterforgeError
from drafterforge.runtime.engine import Engine
from drafterforge.targets.load import load_target
from tests.bundle.conftest import CONVERSATIONS, edit
from tests.tiny import save_tiny_target


def test_a_bundle_decodes_the_target_s_text_with_all_its_parts(shared_bundle, served):
    engine = open_bundle(shared_bundle, target=served)
    assert engine.drafter.names == ["general", "sql", "store", "retrieval"]
    assert engine.drafter.scheduler.name == "planner" and engine.drafter.router.labels == ["general", "sql"]
    assert isinstance(engine.drafter.drafters["store"], Retrieval) and engine.drafter.drafters["store"].datastore
    expected = [answer.tokens for answer in Engine(served).generate(CONVERSATIONS, 24)]
    answers = engine.generate(CONVERSATIONS, 24)
    assert [answer.tokens for answer in answers] == expected
    assert sum(len(answer.cycles) for answer in answers) > 0


def test_open_loads_the_target_that_the_bundle_names(shared_bundle, served):
    engine = drafterforge.open(str(shared_bundle), max_batch=3, dtype="float32")
    assert engine.runtime.max_batch == 3 and engine.target.fingerprint == served.fingerprint


def test_a_bundle_opens_with_one_drafter_or_another_selector(shared_bundle, served):
    alone = open_bundle(shared_bundle, target=served, drafter="sql")
    expected = Engine(served).generate(CONVERSATIONS, 12)
    assert [a.tokens for a in alone.generate(CONVERSATIONS, 12)] == [a.tokens for a in expected]
    hybrid = open_bundle(shared_bundle, target=served, drafter="sql+retrieval")
    assert isinstance(hybrid.drafter, HybridDrafter)
    assert [a.tokens for a in hybrid.generate(CONVERSATIONS, 12)] == [a.tokens for a in expected]
    engine = open_bundle(shared_bundle, target=served, selector="ucb1", scheduler="")
    assert engine.drafter.choose == "ucb1" and engine.drafter.scheduler is None
    plain = open_bundle(shared_bundle, target=served, drafter="")
    assert plain.drafter is None
    with pytest.raises(ConfigError, match=r"runtime\.verify=rejection decodes with a drafter of a runs folder"):
        open_bundle(shared_bundle, runtime=RuntimeConfig(verify="rejection", top_k=1, depth=3, num_tokens=4))
    with pytest.raises(ArtifactError, match="no drafter 'sq'; it has general, sql"):
        open_bundle(shared_bundle, drafter="sq")


def test_an_expert_of_a_bundle_equals_the_expert_that_was_written(shared_bundle, served, parts):
    embedding = served.backbone.embedding
    engine = open_bundle(shared_bundle, target=served)
    expert, plain = engine.drafter.drafters["sql"], engine.drafter.drafters["general"]
    generalist = load_full(parts[1]["drafters/general/config.json"].parent, embedding)
    adapter = load_adapter(parts[1]["drafters/sql/adapter/adapter_config.json"].parent, generalist)
    twin = FusedDrafter(merge(generalist, adapter), embedding)
    features = torch.randn(5, 3 * embedding.shape[1])
    torch.testing.assert_close(expert.fuse(features), twin.fuse(features))
    assert (expert.fuse(features) - plain.fuse(features)).abs().max() > 1e-2
    assert expert.generalist is plain and expert.linears["down"] is plain.linears["down"]


def test_the_same_parts_give_the_same_bytes(parts, shared_bundle, tmp_path):
    again = tmp_path / "again"
    write_bundle(again, *parts, overwrite=False)
    for name in (BUNDLE, *read_record(again).files):
        assert (again / name).read_bytes() == (shared_bundle / name).read_bytes(), name
    os.utime(again / BUNDLE, (1, 1))
    os.chmod(again / "README.md", 0o600)
    assert pack(again, tmp_path / "a.tar") == pack(shared_bundle, tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_an_archive_opens_as_its_folder(shared_bundle, served, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    pack(shared_bundle, tmp_path / "b.tar")
    for _ in range(2):  # the second time from the cache
        engine = open_bundle(tmp_path / "b.tar", target=served)
        assert engine.drafter.names == ["general", "sql", "store", "retrieval"]
    unpacked = list((tmp_path / "cache" / "bundles").iterdir())
    assert len(unpacked) == 1 and read_record(unpacked[0]) == read_record(shared_bundle)


def test_an_archive_is_unpacked_again_if_a_file_was_truncated_or_deleted(shared_bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    pack(shared_bundle, tmp_path / "b.tar")
    folder = locate(tmp_path / "b.tar")
    stamp = (folder / BUNDLE).stat().st_ino
    assert locate(tmp_path / "b.tar") == folder and (folder / BUNDLE).stat().st_ino == stamp  # not unpacked again
    (folder / "README.md").unlink()
    assert check_bundle(locate(tmp_path / "b.tar")) == read_record(shared_bundle)
    (folder / "README.md").write_text("#")
    assert check_bundle(locate(tmp_path / "b.tar")) == read_record(shared_bundle)


def test_two_processes_that_unpack_one_archive_leave_one_folder(shared_bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    pack(shared_bundle, tmp_path / "b.tar")
    real = archive.unpack

    def late(path, to):
        record = real(path, to)
        shutil.copytree(to, tmp_path / "cache" / "bundles" / file_sha256(path))
        return record

    monkeypatch.setattr(archive, "unpack", late)
    folder = locate(tmp_path / "b.tar")
    assert check_bundle(folder) == read_record(shared_bundle)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_an_archive_holds_files_of_more_than_8_gib():
    member = archive.tar_header("drafters/large/model.safetensors", 9 << 30)
    read = tarfile.TarInfo.frombuf(member.tobuf(archive.FORMAT)[-512:], "utf-8", "strict")
    assert read.name == member.name and member.tobuf(archive.FORMAT) == member.tobuf(archive.FORMAT)
    small = archive.tar_header("bundle.json", 100)
    assert small.tobuf(archive.FORMAT) == small.tobuf(tarfile.USTAR_FORMAT)


def test_a_bundle_that_changes_while_it_is_opened_is_refused(bundle, served, monkeypatch):
    real = pools.open_named

    def swap(*arguments):
        drafters = real(*arguments)
        path = bundle / "drafters/general/model.safetensors"
        (bundle.parent / "other").write_bytes(path.read_bytes())
        os.replace(bundle.parent / "other", path)
        return drafters

    monkeypatch.setattr(pools, "open_named", swap)
    with pytest.raises(ArtifactError, match="changed while it was being opened; type the same command again"):
        open_bundle(bundle, target=served)


def test_a_target_with_other_weights_or_another_tokenizer_is_refused(bundle, tmp_path, served):
    folder = save_tiny_target(tmp_path / "other", initializer_range=0.1)
    with pytest.raises(ArtifactError, match="weights or config differ"):
        open_bundle(bundle, target=str(folder))
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"<|im_end|>"', '"<|im_stop|>"'))
    config = (folder / "tokenizer_config.json").read_text()
    (folder / "tokenizer_config.json").write_text(config.replace("<|im_end|>", "<|im_stop|>"))
    with pytest.raises(ArtifactError, match="the tokenizer differs"):
        open_bundle(bundle, target=load_target(TargetConfig(name="o", source="hf", model=str(folder))))


def test_newer_and_unknown_schemas_are_refused_and_older_ones_migrated(bundle, served, monkeypatch):
    edit(bundle, lambda content: content.update(schema_version=3))
    with pytest.raises(ArtifactError, match=r"schema version 3.*reads up to 2.*pip install --upgrade"):
        check_bundle(bundle)
    edit(bundle, lambda content: content.update(schema_version=0))
    with pytest.raises(ArtifactError, match="schema version 0, which drafterforge never wrote"):
        check_bundle(bundle)

    def from_zero(content: dict) -> dict:
        content["defaults"]["depth"] = content["defaults"].pop("levels")
        return content | {"schema_version": 1}

    def to_zero(content: dict) -> None:
        del content["defaults"]["depth"]
        content["defaults"]["levels"] = 3

    monkeypatch.setitem(records.MIGRATIONS, 0, from_zero)
    edit(bundle, to_zero)
    assert check_bundle(bundle).defaults.depth == 3
    assert open_bundle(bundle, target=served).shape.depth == 3


def test_version_1_wrote_hedgespec_where_no_selector_was_typed(bundle):
    def to_first(content: dict, **defaults: object) -> None:
        content["schema_version"] = 1
        content["defaults"] |= {"selector": "hedgespec", "scheduler": "", "router": "", "every": 1, **defaults}

    edit(bundle, to_first)
    assert (read_record(bundle).defaults.selector, read_record(bundle).defaults.automatic) == ("", True)
    assert read_record(bundle).defaults.selector_name == "hedgespec"
    for change in ({"depth": 3}, {"selector": "ucb1"}, {"scheduler": "shapes"}):
        edit(bundle, partial(to_first, **change))
        defaults = read_record(bundle).defaults
        assert (defaults.selector, defaults.automatic) == (change.get("selector", "hedgespec"), False)


def test_a_path_without_bundle_json_is_no_bundle(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(ArtifactError, match=r"not a bundle: it has no bundle\.json"):
        open_bundle(tmp_path / "x")
    with pytest.raises(ArtifactError, match="no bundle at"):
        open_bundle(tmp_path / "nothing")
    (tmp_path / "file").write_text("hello")
    with pytest.raises(ArtifactError, match="expected a folder"):
        open_bundle(tmp_path / "file")


def test_writing_over_something_else_is_refused(parts, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(ArtifactError, match="not a drafterforge artifact"):
        write_bundle(tmp_path / "mine", *parts, overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "x"


@pytest.mark.parametrize("name", [".git/config", "drafters/general/notes.txt", "mine/deep/thesis.txt"])
def test_overwriting_keeps_files_that_are_not_the_bundle_s(parts, bundle, name):
    (bundle / name).parent.mkdir(parents=True, exist_ok=True)
    (bundle / name).write_text("x")
    entry = name if name.startswith("drafters") else name.split("/")[0]
    with pytest.raises(ArtifactError, match=rf"also holds '{re.escape(entry)}', which bundle.json .* type out=OTHER"):
        write_bundle(bundle, *parts, overwrite=True)
    assert (bundle / name).read_text() == "x"
    (bundle / BUNDLE).write_text("{")
    with pytest.raises(ArtifactError, match=r"and \d more, which bundle\.json does not name"):
        write_bundle(bundle, *parts, overwrite=True)


def test_overwriting_replaces_a_folder_that_holds_a_bundle_only(parts, bundle):
    write_bundle(bundle, replace(parts[0], created="2027"), parts[1], overwrite=True)
    assert read_record(bundle).created == "2027"


def test_a_write_that_fails_leaves_the_earlier_bundle(parts, bundle, monkeypatch):
    before = {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    record, sources = parts
    calls = [0]
    real = shutil.copyfile

    for stop in range(1, len(sources) + 1):
        calls[0] = 0

        def copy(source, to, stop=stop):
            calls[0] += 1
            if calls[0] == stop:
                raise KeyboardInterrupt
            return real(source, to)

        monkeypatch.setattr("drafterforge.bundle.write.shutil.copyfile", copy)
        with pytest.raises(KeyboardInterrupt):
            write_bundle(bundle, replace(record, created="2027"), sources, overwrite=True)
        assert {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()} == before
        assert [path.name for path in bundle.parent.iterdir()] == [bundle.name]


BLOCKED = ["lightning", "pytorch_lightning", "hydra", "omegaconf", "datasets", "peft", "pandas", "pyarrow", "scipy"]
BLOCKED += ["matplotlib", "gguf", "tensorboard", "fastapi"]
OPEN = """
import builtins, sys
real, blocked = builtins.__import__, set(sys.argv[2].split())
def guard(name, *rest, **more):
    is_ours = sys._getframe(1).f_globals.get("__name__", "").startswith("drafterforge")
    if name.split(".")[0] in blocked and is_ours:
        raise ImportError("blocked " + name)
    return real(name, *rest, **more)
builtins.__import__ = guard
import drafterforge
assert "torch" not in sys.modules
engine = drafterforge.open(sys.argv[1], dtype="float32")
print(len(engine.runtime.generate([[3, 4, 5]], 8)[0].tokens))
print(sorted(blocked & {name.split(".")[0] for name in sys.modules} - {"scipy", "pandas", "pyarrow"}))
"""


@pytest.mark.slow
def test_opening_imports_no_package_that_only_training_or_reports_need(shared_bundle):
    command = [sys.executable, "-c", OPEN, str(shared_bundle), " ".join(BLOCKED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["8", "[]"]


def test_a_record_with_strange_names_is_refused(parts):
    record, _ = parts
    twice = [record.drafters[0], record.drafters[0]]
    with pytest.raises(DrafterforgeError, match="'general' more than once"):
        replace(record, drafters=twice)
    with pytest.raises(DrafterforgeError, match="is not a name"):
        replace(record, drafters=[replace(record.drafters[0], name="../x")])
    with pytest.raises(DrafterforgeError, match="is an adapter itself"):
        replace(record, drafters=[replace(record.drafters[0], base="sql"), record.drafters[1]])


def test_the_card_s_licence_is_that_of_all_drafters_with_files(parts):
    record, _ = parts
    record = replace(record, drafters=[replace(entry, licence="MIT" * bool(entry.path)) for entry in record.drafters])
    assert 'license: "mit"' in model_card(record)


def test_the_card_names_target_drafters_and_licences(shared_bundle):
    card = (shared_bundle / "README.md").read_text()
    front, body = card.split("---\n")[1:3]
    assert json.loads(front.split("license: ")[1].splitlines()[0]) == "other"  # one drafter states no licence
    assert read_record(shared_bundle).target.fingerprint in body and "| sql | eagle3 | sql | general |" in body
