"""What `drafter=auto` and a pool without names take."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
import torch

from drafterforge.artifacts.manifest import Manifest
from drafterforge.assembly.build import auto_engine
from drafterforge.assembly.defaults import default_drafter
from drafterforge.assembly.pools import build_pool
from drafterforge.assembly.runs import RunsFolder
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.errors import ConfigError

GPU = torch.device("cuda")


def folder(runs, device: torch.device | None = None) -> RunsFolder:
    target = runs.target if device is None else dataclasses.replace(runs.target, device=device)
    return RunsFolder(runs.folder, target)


def test_on_a_cpu_the_generalist_drafts_with_the_datastore_in_its_trees_and_elsewhere_alone(runs):
    assert default_drafter(folder(runs)) == "general+store"
    assert default_drafter(folder(runs, GPU)) == "general"


def test_a_generalist_comes_before_drafters_of_one_domain_whatever_their_names(empty):
    empty.full("chat", "chat")
    assert default_drafter(folder(empty)) == "chat+retrieval"
    empty.full("mixture")
    assert default_drafter(folder(empty)) == "mixture+retrieval"
    empty.store("chat-store", "chat")  # of another domain than the generalist's
    assert default_drafter(folder(empty)) == "mixture+retrieval"


def test_a_datastore_decodes_alone_on_a_cpu_and_nothing_where_there_is_nothing(empty):
    assert default_drafter(folder(empty)) == ""
    empty.store("store")
    assert default_drafter(folder(empty)) == "store"
    assert default_drafter(folder(empty, GPU)) == ""


def test_the_default_engine_has_the_default_drafter(runs):
    engine, name = auto_engine(folder(runs), RuntimeConfig(), max_batch=3)
    assert name == "general+store" and engine.drafter.names == [name] and engine.max_batch == 3
    assert engine.drafter.worth is not None


def test_engines_begin_with_what_was_saved_for_their_drafter(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path))

    def traffic(carry: bool = True) -> dict:
        return auto_engine(folder(runs), RuntimeConfig(), carry=carry)[0].drafter.worth.traffic

    engine, _ = auto_engine(folder(runs), RuntimeConfig(), carry=True)
    engine.generate([[7, 8, 9]], 12)
    assert traffic() == {}
    engine.save_state()
    assert traffic().keys() == {(0.0, 1)} and traffic(carry=False) == {}
    auto_engine(folder(runs), RuntimeConfig())[0].save_state()  # opened without `carry`: changes nothing
    assert traffic().keys() == {(0.0, 1)}
    shutil.rmtree(runs.folder / "tiny" / "drafters" / "general")
    runs.full("general")  # other weights
    assert traffic() == {}


def test_a_pool_takes_experts_that_bettered_their_generalist_and_says_whom_it_leaves_out(runs, capsys):
    assert folder(runs).pool() == ["general", "sql", "store", "retrieval"]
    runs.expert("math", Manifest.read(runs.folder / "tiny/drafters/general"), best_step=0)
    runs.full("k8s", "k8s")  # of one domain, from scratch: never compared with the generalist
    assert folder(runs).unproven() == ["k8s", "math"]
    pool, _ = build_pool(PoolConfig(), RuntimeConfig(), folder(runs))
    assert pool.names == ["general", "sql", "store", "retrieval"]
    assert "the pool leaves out k8s, math: " in capsys.readouterr().err
    pool, _ = build_pool(PoolConfig(drafters=["general", "k8s"]), RuntimeConfig(), folder(runs))
    assert pool.names == ["general", "k8s"] and capsys.readouterr().err == ""


def test_without_a_generalist_drafters_from_scratch_make_the_pool(empty):
    empty.full("sql", "sql")
    empty.full("math", "math")
    assert folder(empty).pool() == ["math", "sql", "retrieval"]


def test_a_pool_of_nothing_says_what_to_type(empty):
    with pytest.raises(ConfigError, match=r"the pool is empty: .* type `drafterforge train-drafter domain=sql"):
        folder(empty).pool()
