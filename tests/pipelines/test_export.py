"""`export` from the command line, and `generate` and `inspect` on the exported bundle."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import drafterforge
from drafterforge.bundle import hub
from drafterforge.bundle.record import BUNDLE, read_record
from drafterforge.cli import main
from drafterforge.drafters.eagle3 import checkpoint
from drafterforge.errors import ArtifactError
from drafterforge.interop.layout import UnfitError
from tests.pipelines.conftest import SMOKE
from tests.tiny import save_tiny_target

pytestmark = pytest.mark.slow  # whole programs

ASK = ("generate", "prompt=How many?", "max_new_tokens=8", "colour=never")


def file_hashes(folder) -> dict[str, str]:
    """Hash of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def exported(trained):
    """A bench with a bundle of its sql drafter and retrieval."""
    done = trained("export", "licence=MIT", "bundle=house")
    assert done.code == 0, done.err
    return trained


def test_an_exported_bundle_opens_with_the_target_s_text(exported):
    folder = exported.artifact("bundles", "house")
    record = read_record(folder)
    assert [entry.name for entry in record.drafters] == ["sql", "retrieval"]
    sql = record.drafter("sql")
    assert (sql.domain, sql.licence) == ("sql", "MIT") and sql.training["val_accept_length"] >= 1
    assert sql.training["trainer"]["ttt_steps"] >= 1
    assert not [name for name in record.files if "logs" in name or "curves" in name]
    plain = exported(*ASK, "drafter=")
    for options in (("bundle=house",), (f"bundle={folder}", "drafter=sql"), ("bundle=house", "drafter=retrieval")):
        done = exported(*ASK, *options)
        assert (done.code, done.out) == (0, plain.out), done.err
    engine = drafterforge.open(folder, dtype="float32")
    assert engine.runtime.drafter.names == ["sql+retrieval"] and engine.runtime.drafter.worth is not None
    pool = drafterforge.open(folder, dtype="float32", drafter="pool").runtime.drafter
    assert pool.names == ["sql", "retrieval"] and pool.choose == "hedgespec"
    assert "**Decodes** as `drafter=auto`" in (folder / "README.md").read_text()


def test_a_bundle_is_inspected_as_a_table(exported, capsys):
    assert main(["inspect", str(exported.artifact("bundles", "house"))]) == 0
    out = capsys.readouterr().out
    record = read_record(exported.artifact("bundles", "house"))
    assert record.target.fingerprint in out and "retrieval" in out and record.digest[:20] in out
    weights = exported.artifact("bundles", "house") / "drafters/sql/model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert main(["inspect", str(exported.artifact("bundles", "house"))]) == 2
    assert "has sha256" in capsys.readouterr().err


def test_control_characters_of_a_bundle_are_escaped(exported, capsys):
    assert exported("export", "bundle=odd", "licence='[/bold] :smile: [link=x]'").code == 0
    assert main(["inspect", str(exported.artifact("bundles", "odd"))]) == 0
    assert "[/bold] :smile: [link=x]" in capsys.readouterr().out
    line = exported(*ASK, "bundle=./\x1b[2Jhouse").one_line()
    assert "no bundle at ?[2Jhouse" in line and "\x1b" not in line


def test_an_archive_is_the_same_bytes_again(exported, tmp_path):
    assert exported("export", "bundle=house", "format=tar").code == 0
    first = exported.artifact("bundles", "house.tar").read_bytes()
    assert "exists already" in exported("export", "bundle=house", "format=tar").one_line()
    shutil.rmtree(exported.artifact("bundles", "house"))
    again = exported("export", "licence=MIT", "bundle=house", "format=tar", f"out={tmp_path / 'again.tar'}")
    assert again.code == 0, again.err
    assert (tmp_path / "again.tar").read_bytes() == first
    done = exported(*ASK, f"bundle={tmp_path / 'again.tar'}")
    assert (done.code, done.out) == (0, exported(*ASK, "drafter=").out), done.err


@pytest.mark.parametrize(
    ("typed", "key"), [("licence=BSD", "licence="), ("pool.selector=ucb1", "pool.*"), ("runtime.depth=2", "runtime.*")]
)
def test_contents_of_a_bundle_that_exists_are_not_typed_in_vain(exported, typed, key):
    line = exported("export", "bundle=house", "format=tar", typed).one_line()
    assert (
        f"exists, so {key} is not read by format=tar" in line
        and "`drafterforge export bundle=house overwrite=true" in line
    )


def test_a_drafter_that_a_format_cannot_hold_is_left_out_unless_it_is_named(exported, monkeypatch):
    def unfit(*_: object) -> str:
        raise UnfitError("no room")

    monkeypatch.setattr("drafterforge.interop.export.write_sglang", unfit)
    done = exported("export", "bundle=house", "format=sglang")
    assert done.code == 0 and "left out sql: no room" in done.err
    named = exported("export", "bundle=house", "format=sglang", "drafter=sql")
    assert named.code == 2 and named.err.endswith("drafterforge: no room\n")


def test_mistakes_get_one_line_and_leave_the_earlier_bundle(exported):
    before = file_hashes(exported.runs)
    mistakes = {
        "exists already; type overwrite=true": ("export", "bundle=house"),
        "no drafters named 'sgl'": ("export", "bundle=other", "pool.drafters=[sgl]"),
        "no policies named 'nothing'": ("export", "bundle=house", "overwrite=true", "pool.scheduler=nothing"),
        "bundle=.hidden is not a name": ("export", "bundle=.hidden"),
        "format must be one of": ("export", "format=zip"),
        "push= uploads a bundle": ("export", "format=tar", "push=me/mine"),
        "is not a repository id": ("export", "bundle=house", "overwrite=true", "push=nowhere"),
        "(available: house); type `drafterforge export bundle=nothing target=hf": (*ASK, "bundle=nothing"),
        "no bundle at nothing; expected a folder": (*ASK, "bundle=./nothing"),
        "the bundle has no drafter 'sq'": (*ASK, "bundle=house", "drafter=sq"),
        "the bundle has no router for selector=router": (*ASK, "bundle=house", "pool.selector=router"),
        "which only eval measures; type hedgespec": (*ASK, "bundle=house", "pool.selector=oracle"),
        "has no manifest.json; leave it out": ("export", "bundle=other", f"pool.drafters=[sql,{exported.target}]"),
    }
    for expected, typed in mistakes.items():
        assert expected in exported(*typed).one_line(), typed
    assert file_hashes(exported.runs) == before


def test_an_expert_is_packed_with_its_own_generalist(pool, tmp_path, monkeypatch):
    """Experts of the package keep its generalist beside another drafter of that name in the runs."""
    shipped = tmp_path / "shipped" / "tiny" / "drafters"
    shipped.mkdir(parents=True)
    monkeypatch.setattr(checkpoint, "SHIPPED", tmp_path / "shipped")
    drafters = pool.artifact("drafters", "general").parent
    generalist = (drafters / "general" / "model.safetensors").read_bytes()
    (drafters / "general").rename(shipped / "general")
    again = pool("train-drafter", "domain=general", "answers=general", *SMOKE, "trainer.lr=0.01")
    assert again.code == 0, again.err
    done = pool("export", "bundle=house", "pool.drafters=[general,sql]")
    assert done.code == 0, done.err
    folder = pool.runs / "tiny" / "bundles" / "house"
    entries = {entry.name: entry for entry in read_record(folder).drafters}
    assert len(entries) == 3 and entries["sql"].base not in ("", "general")
    assert (folder / entries[entries["sql"].base].path / "model.safetensors").read_bytes() == generalist
    assert (folder / entries["general"].path / "model.safetensors").read_bytes() != generalist


class HubFolder:
    """A hub that is a folder."""

    def __init__(self, folder):
        self.folder, self.calls = folder, []

    def list_repo_files(self, repository, revision):
        folder = self.folder / repository
        return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]

    def create_branch(self, repository, branch, exist_ok):
        self.calls.append((repository, branch, exist_ok))

    def create_repo(self, repository, private, exist_ok):
        self.calls.append((repository, private, exist_ok))

    def upload_folder(self, repo_id, folder_path, allow_patterns, **_):
        for name in allow_patterns:
            path = self.folder / repo_id / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(f"{folder_path}/{name}", path)
        (self.folder / repo_id / ".gitattributes").write_text("*.safetensors lfs\n")


def test_a_bundle_goes_to_the_hub_and_comes_back_by_its_id(exported, tmp_path, monkeypatch):
    hub_folder, downloads = HubFolder(tmp_path / "hub"), []

    def snapshot_download(repository, revision, allow_patterns, local_dir):
        downloads.append(allow_patterns)
        unwanted = () if len(allow_patterns) > 1 else ("*.safetensors",)
        shutil.copytree(
            hub_folder.folder / repository, local_dir, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*unwanted)
        )
        (local_dir / ".cache").mkdir(exist_ok=True)
        if revision:
            raise ValueError(f"no revision {revision}\nthere")

    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub_folder)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    done = exported("export", "bundle=house", "licence=MIT", "overwrite=true", "push=me/house")
    assert done.code == 0 and "pushed to me/house" in done.err, done.err
    assert hub_folder.calls == [("me/house", True, True)]
    done = exported(*ASK, "bundle=me/house")
    assert (done.code, done.out) == (0, exported(*ASK, "drafter=").out), done.err
    recorded = read_record(tmp_path / "cache/hub-bundles/me--house").files
    assert [sorted(names) for names in downloads] == [[BUNDLE], sorted(recorded)]
    left = tmp_path / "cache/hub-bundles/me--house/drafters/earlier.json"  # of an earlier bundle
    left.write_text("{}")
    assert exported(*ASK, "bundle=me/house").code == 0 and not left.exists()
    line = exported(*ASK, "bundle=me/house@v2").one_line()
    assert "could not get the bundle 'me/house@v2' from the hub (no revision v2)" in line
    (tmp_path / "hub/me/model").mkdir()
    line = exported(*ASK, "bundle=me/model").one_line()
    assert "'me/model' on the hub is no bundle: it has no bundle.json" in line and downloads[-1] == [BUNDLE]
    assert not hub.is_hub_id("a/../b") and not hub.is_hub_id("/tmp/x") and hub.is_hub_id("a/b@refs/pr/1")


def test_an_existing_bundle_is_pushed_unchanged_and_never_over_another_repository(exported, tmp_path, monkeypatch):
    hub_folder = HubFolder(tmp_path / "hub")
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub_folder)
    before = file_hashes(exported.runs)
    done = exported("export", "bundle=house", "push=me/house@v2")
    assert done.code == 0, done.err
    assert "is used as it is; to rebuild it, type drafterforge export bundle=house" in done.err
    assert "overwrite=true" in done.err
    assert hub_folder.calls[1] == ("me/house", "v2", True) and file_hashes(exported.runs) == before
    theirs = tmp_path / "hub/me/thesis/model.safetensors"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("weights")
    line = exported("export", "bundle=house", "push=me/thesis").one_line()
    assert "me/thesis holds 'model.safetensors' and no bundle" in line and "type push=OTHER" in line
    assert [path.name for path in theirs.parent.iterdir()] == [theirs.name]
    monkeypatch.setattr(hub_folder, "upload_folder", lambda **_: (_ for _ in ()).throw(OSError("401\nnot you")))
    assert "(401); the bundle is complete in " in exported("export", "bundle=house", "push=me/house").one_line()


def test_a_bundle_that_does_not_open_is_not_written(exported, monkeypatch):
    before = file_hashes(exported.runs)

    def refuse(folder, **_):
        raise ArtifactError(f"{folder.name} does not open")

    monkeypatch.setattr("drafterforge.assembly.packing.open_bundle", refuse)
    assert "does not open" in exported("export", "bundle=house", "overwrite=true", "licence=BSD").one_line()
    assert file_hashes(exported.runs) == before


def test_a_bundle_is_found_after_its_writer_died_between_two_renames(exported):
    folder = exported.artifact("bundles", "house")
    for typed in (
        ("generate", "prompt=a", "bundle=house", "max_new_tokens=1"),
        ("inspect", "house"),
        ("inspect", folder),
    ):
        folder.rename(folder.with_name(".house.old-1-abcd"))
        if typed[0] == "inspect":
            assert main(["inspect", str(typed[1]), f"runs_dir={exported.runs}"]) == 0
        else:
            assert exported(*typed).code == 0
        assert folder.is_dir()


def test_a_bundle_names_its_target_s_folder_and_another_can_be_typed(exported, tmp_path, capsys):
    record = read_record(exported.artifact("bundles", "house"))
    assert record.target.model == str(exported.target.resolve())
    typed = ["target=hf", f"target.model={exported.target}", f"runs_dir={exported.runs}"]  # without target.name
    assert main(["export", *typed, "bundle=other", "pool.drafters=[retrieval]"]) == 0
    assert "on another machine type target=hf target.model=FOLDER" in capsys.readouterr().err
    assert main(["generate", f"bundle={exported.artifact('bundles', 'other')}", "prompt=a", "max_new_tokens=1"]) == 0
    capsys.readouterr()
    assert main(["generate", "bundle=other", f"runs_dir={exported.runs}", "prompt=a"]) == 2  # of another target
    line = capsys.readouterr().err
    assert f"no bundle named 'other' for target 'smollm2-135m' in {exported.runs} (available: none)" in line
    assert f"type bundle={exported.artifact('bundles', 'other')}" in line


def test_a_packed_bundle_is_unpacked_before_it_is_packed_again(exported, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    house = exported.artifact("bundles", "house")
    assert exported("export", "format=tar", f"bundle={house}", "out=house.tar").code == 0
    for typed in ("bundle=house.tar", "bundle=./house.tar"):
        line = exported("export", "format=vllm-pool", typed).one_line()
        assert f"{typed} is a packed bundle; unpack it first: type `mkdir FOLDER && tar -xf" in line
    assert not exported.artifact("bundles", "house.tar").exists()


def test_a_bundle_is_packed_in_its_folder(exported, monkeypatch):
    house = exported.artifact("bundles", "house")
    monkeypatch.chdir(house)
    assert exported("export", "format=tar", "bundle=.").code == 0
    assert house.with_name("house.tar").is_file()


def test_a_pool_folder_is_for_the_target_of_its_bundle(exported, tmp_path):
    second = save_tiny_target(tmp_path / "other", initializer_range=0.1)
    bundle, out = exported.artifact("bundles", "house"), tmp_path / "pool"
    line = exported("export", "format=vllm-pool", f"bundle={bundle}", f"out={out}", target=second).one_line()
    assert f"{bundle} serves target 'tiny' with fingerprint" in line and not out.exists()
    assert exported("export", "format=vllm-pool", f"bundle={bundle}", f"out={out}").code == 0 and out.is_dir()


def test_an_interrupted_export_leaves_the_earlier_bundle(exported, monkeypatch):
    before = file_hashes(exported.runs)
    for function in ("hash_files", "model_card", "check_files"):
        with monkeypatch.context() as patch:

            def stop(*_, **__):
                raise KeyboardInterrupt

            patch.setattr(f"drafterforge.bundle.write.{function}", stop)
            done = exported("export", "bundle=house", "licence=BSD", "overwrite=true")
        assert "interrupted" in done.one_line(130)
        assert file_hashes(exported.runs) == before
    done = exported("export", "bundle=house", "licence=BSD", "overwrite=true")
    assert done.code == 0
    assert read_record(exported.artifact("bundles", "house")).drafter("sql").licence == "BSD"
    assert json.loads((exported.artifact("bundles", "house") / BUNDLE).read_text())["schema_version"] == 2


def test_drafters_of_a_bundle_and_of_runs_are_exported_for_other_programs(exported, tmp_path):
    done = exported("export", "bundle=house", "format=sglang")
    assert done.code == 0 and "serve it with: python -m sglang.launch_server" in done.err, done.err
    assert f"from the bundle {exported.artifact('bundles', 'house')}" in done.err
    folder = exported.runs / "tiny/exports/sql-sglang"
    shutil.rmtree(exported.artifact("bundles", "house"))
    again = exported("export", "format=sglang", "drafter=sql", f"out={tmp_path / 'again'}")
    assert again.code == 0, again.err
    assert (tmp_path / "again/config.json").read_bytes() == (folder / "config.json").read_bytes()
    first, second = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "again"))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    for layout in ("speculators", "plain"):
        done = exported("export", "format=vllm", f"layout={layout}", "drafter=sql")
        assert done.code == 0 and "serve it with: vllm serve" in done.err, done.err
    mistakes = {
        "exists already": ("export", "format=sglang", "weights=float32"),
        "no bundle named 'hous'": ("export", "bundle=hous", "format=vllm"),
        "no drafters named 'sgl' for target 'tiny'": ("export", "format=vllm", "drafter=sgl"),
        "layout=plain is read by format=vllm only": ("export", "format=sglang", "layout=plain"),
    }
    for expected, typed in mistakes.items():
        assert expected in exported(*typed).one_line(), typed


def test_inspect_accepts_names(exported, capsys):
    runs = f"runs_dir={exported.runs}"
    assert main(["inspect", "house", runs]) == 0
    assert "bundle house: all files undamaged" in capsys.readouterr().out
    assert main(["inspect", "sql", runs]) == 0  # answers, features, a drafter and a report
    done = capsys.readouterr()
    assert "drafters sql: all files undamaged" in done.out
    assert f"{exported.artifact('drafters')}; others of this name: {exported.artifact('answers')}, " in done.err
    assert main(["inspect", "nothing", runs]) == 2
    assert "'nothing' is neither an artifact of" in capsys.readouterr().err
