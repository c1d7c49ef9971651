"""What `drafter=auto` and a pool without names take."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import torch

from drafterforge.artifacts.learned import JOINED, LEFT, LearnedVersion, update_record
from drafterforge.artifacts.manifest import Manifest
from drafterforge.assembly.build import advisor, auto_engine, state_path
from drafterforge.assembly.defaults import default_drafters
from drafterforge.assembly.pools import build_pool
from drafterforge.assembly.runs import RunsFolder
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.drafters.eagle3.checkpoint import save_drafter
from drafterforge.errors import ArtifactError, ConfigError
from tests.models import tiny_drafter

GPU = torch.device("cuda")


def folder(runs, device: torch.device | None = None) -> RunsFolder:
    target = runs.target if device is None else dataclasses.replace(runs.target, device=device)
    return RunsFolder(runs.folder, target)


def test_on_a_cpu_all_draft_with_the_datastore_in_their_trees_and_elsewhere_the_generalist_alone(runs):
    assert default_drafters(folder(runs)) == ["general+store", "sql+store"]
    assert default_drafters(folder(runs, GPU)) == ["general"]


def test_a_generalist_comes_before_drafters_of_one_domain_whatever_their_names(empty):
    empty.full("chat", "chat")
    assert default_drafters(folder(empty)) == ["chat+retrieval"]
    empty.full("mixture")
    assert default_drafters(folder(empty)) == ["mixture+retrieval"]
    empty.store("chat-store", "chat")  # of another domain than the generalist's
    assert default_drafters(folder(empty)) == ["mixture+retrieval"]


def test_a_datastore_decodes_alone_on_a_cpu_and_nothing_where_there_is_nothing(empty):
    assert default_drafters(folder(empty)) == []
    empty.store("store")
    assert default_drafters(folder(empty)) == ["store"]
    assert default_drafters(folder(empty, GPU)) == []


def test_drafters_of_other_taps_are_left_out_of_the_default_and_of_pools(runs, capsys):
    """Those of an imported drafter, for example, may be typed for it alone."""
    drafter = tiny_drafter(runs.target)

    def save(inside) -> None:
        save_drafter(inside, drafter)
        config = json.loads((inside / "config.json").read_text())
        config["eagle_aux_hidden_state_layer_ids"] = [0, 0, 0]
        (inside / "config.json").write_text(json.dumps(config))

    runs.write("general-wide", save, "general", val_accept_length=3.0)
    source = folder(runs)
    assert default_drafters(source) == ["general+store", "sql+store"] and source.other_taps() == ["general-wide"]
    build_pool(PoolConfig(), RuntimeConfig(), RunsFolder(runs.folder, runs.target))
    assert "left out: general-wide; they read other layers of the target than" in capsys.readouterr().err
    auto_engine(RunsFolder(runs.folder, runs.target), RuntimeConfig())
    assert "left out: general-wide; they read other layers of the target than" in capsys.readouterr().err
    with pytest.raises(ArtifactError, match=r"reads the inputs of layers \(0, 0, 0\)"):
        build_pool(PoolConfig(drafters=["general-wide"]), RuntimeConfig(), source)


def test_the_default_engine_has_the_default_drafter(runs):
    engine, names = auto_engine(folder(runs), RuntimeConfig(), max_batch=3)
    assert names == ["general+store", "sql+store"] == engine.drafter.names and engine.max_batch == 3
    assert engine.drafter.worth is not None


def test_the_default_leaves_out_experts_that_are_not_known_to_help_or_do_not_open(runs, capsys):
    runs.expert("math", Manifest.read(runs.folder / "tiny/drafters/general"), best_step=0)
    assert default_drafters(folder(runs)) == ["general+store", "sql+store"]
    assert capsys.readouterr().err == ""
    shutil.rmtree(runs.folder / "tiny" / "drafters" / "general")
    runs.full("general")  # other weights
    assert default_drafters(folder(runs)) == ["general+store"]
    assert "drafter=auto leaves out sql: " in capsys.readouterr().err


def test_the_default_leaves_out_experts_of_traffic_that_draft_no_more(runs):
    general, traffic = Manifest.read(runs.folder / "tiny/drafters/general"), runs.folder / "tiny" / "traffic"
    states = {"sql-traffic-v1": LEFT, "sql-traffic-v2": JOINED}
    versions = []
    for name, state in states.items():
        runs.expert(name, general)
        versions.append(LearnedVersion(name, "sql", state, "sql", 0.1, 0.05, 0.15, 9, 9, "2026-11-25"))
    update_record(traffic, lambda record: dataclasses.replace(record, versions=versions))
    assert default_drafters(folder(runs)) == ["general+store", "sql+store", "sql-traffic-v2+store"]
    assert folder(runs).find("sql-traffic-v1").is_dir()  # by its name it opens
    (traffic / "learning" / "learned.json").write_text("{")
    assert "sql-traffic-v1+store" in default_drafters(folder(runs))


def test_the_default_is_advised_by_the_target_s_router_if_it_knows_the_drafters(runs):
    names = ["general+store", "sql+store"]
    assert advisor(folder(runs), names) is None  # there is none
    runs.router(["sql", "math"])
    assert advisor(folder(runs), names).labels == ["sql", "math"]
    assert auto_engine(folder(runs), RuntimeConfig())[0].drafter.router.labels == ["sql", "math"]
    assert advisor(folder(runs), ["chat+store", "law+store"]) is None  # it knows neither


def test_engines_begin_with_what_was_saved_for_their_drafter(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path))

    def traffic(carry: bool = True) -> dict:
        return auto_engine(folder(runs), RuntimeConfig(), carry=carry)[0].drafter.worth.traffic

    engine, _ = auto_engine(folder(runs), RuntimeConfig(), carry=True)
    engine.generate([[7, 8, 9]], 12)
    assert traffic() == {}
    engine.save_state()
    assert traffic().keys() == {(0.0, 1, "")} and traffic(carry=False) == {}
    auto_engine(folder(runs), RuntimeConfig())[0].save_state()  # opened without `carry`: changes nothing
    assert traffic().keys() == {(0.0, 1, "")}
    shutil.rmtree(runs.folder / "tiny" / "drafters" / "general")
    runs.full("general")  # other weights
    assert traffic() == {}


def test_a_state_is_found_although_experts_of_traffic_have_joined(runs, monkeypatch):
    alone, joined = ["general+retrieval"], ["general+retrieval", "sql+retrieval"]
    before = state_path(folder(runs), alone, False)
    assert state_path(folder(runs), joined, False) != before
    monkeypatch.setattr(RunsFolder, "learned", lambda source: {"sql"})
    assert state_path(folder(runs), joined, False) == before


def test_a_pool_takes_experts_that_bettered_their_generalist_and_says_whom_it_leaves_out(runs, capsys):
    assert folder(runs).pool() == ["general", "sql", "store", "retrieval"]
    runs.expert("math", Manifest.read(runs.folder / "tiny/drafters/general"), best_step=0)
    runs.full("k8s", "k8s")  # of one domain, from scratch: never compared with the generalist
    assert folder(runs).unproven() == ["k8s", "math"]
    pool, _ = build_pool(PoolConfig(), RuntimeConfig(), folder(runs))
    assert pool.names == ["general", "sql", "store", "retrieval"]
    assert "not in the pool: k8s, math: on " in capsys.readouterr().err
    pool, _ = build_pool(PoolConfig(drafters=["general", "k8s"]), RuntimeConfig(), folder(runs))
    assert pool.names == ["general", "k8s"] and capsys.readouterr().err == ""


def test_an_expert_that_was_validated_on_few_prompts_is_left_out(runs, capsys):
    general = Manifest.read(runs.folder / "tiny/drafters/general")
    runs.expert("few", general, val_prompts=2)
    runs.expert("math", general, val_prompts=8)  # that of `sql`, like all of earlier versions, is unknown
    assert folder(runs).unproven() == ["few"]
    assert default_drafters(folder(runs)) == ["general+store", "math+store", "sql+store"]
    build_pool(PoolConfig(), RuntimeConfig(), folder(runs))
    assert "not in the pool: few: on " in capsys.readouterr().err


def test_an_expert_that_was_learned_from_traffic_and_joined_there_is_in_the_pool(runs):
    runs.expert("few", Manifest.read(runs.folder / "tiny/drafters/general"), val_prompts=2)
    version = LearnedVersion("few", "traffic-1", JOINED, "general", 0.1, 0.05, 0.15, 9, 9, "2026-11-25")
    update_record(runs.folder / "tiny" / "traffic", lambda record: dataclasses.replace(record, versions=[version]))
    assert folder(runs).unproven() == [] and "few" in folder(runs).pool()


def test_without_a_generalist_drafters_from_scratch_make_the_pool(empty):
    empty.full("sql", "sql")
    empty.full("math", "math")
    assert folder(empty).pool() == ["math", "sql", "retrieval"]


def test_a_pool_of_nothing_says_what_to_type(empty):
    with pytest.raises(ConfigError, match=r"the pool is empty: .* type `drafterforge train-drafter domain=sql"):
        folder(empty).pool()
