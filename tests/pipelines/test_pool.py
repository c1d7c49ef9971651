"""A pool of drafters from the command line: the target's text, a router over it, export, and shipped drafters."""

from __future__ import annotations

import json
import shutil

import pytest
from safetensors.torch import load_file

from drafterforge.artifacts import locate
from drafterforge.artifacts.folder import open_artifact
from drafterforge.drafters.eagle3 import checkpoint
from drafterforge.training import parents
from tests.pipelines.conftest import CONTINUED, EXPERT, GENERAL

pytestmark = pytest.mark.slow  # many short tests


NORMED = ("drafter.fc_norm=true", "drafter.norm_output=true")


def test_a_pool_of_eagle_3_1_trains_decodes_the_targets_text_and_goes_through_an_export(bench):
    general, expert = (*GENERAL, *NORMED), (*EXPERT, "domain=sql")
    assert bench(*general).code == bench(*expert, NORMED[0]).code == 0
    assert "was trained before" in bench(*expert).err  # an expert has its parent's norms, typed or not
    folder = bench.artifact("drafters", "general")
    config = json.loads((folder / "config.json").read_text())
    assert config["fc_norm"] is config["norm_output"] is True
    gains = load_file(folder / "model.safetensors")["fc_norm.2.weight"].float()
    assert (gains - 1).abs().mean() > 0.05  # scratch_init set it to the feature's size
    settings = ("target.dtype=float32", "max_new_tokens=12", "prompt=SELECT a FROM t")
    plain = bench("generate", "drafter=", *settings)
    for drafter in ("general", "sql", "pool"):
        drafted = bench("generate", f"drafter={drafter}", *settings)
        assert (drafted.code, drafted.out) == (0, plain.out), drafter
    exported = bench("export", "format=vllm", "drafter=sql", f"out={bench.folder / 'out'}")
    assert "it has fc_norm and norm_output, which only SGLang and vLLM support" in exported.err
    assert bench("import", f"path={bench.folder / 'out'}", "name=again").code == 0
    assert json.loads((bench.artifact("drafters", "again") / "config.json").read_text())["norm_output"] is True
    assert bench("generate", "drafter=again", *settings).out == plain.out
    assert bench("export", "bundle=house").code == 0
    assert bench("generate", "bundle=house", *settings).out == plain.out


def test_an_expert_decodes_the_target_s_text(pool):
    ask = ("generate", "prompt=Which users are active?", "max_new_tokens=12")
    assert pool(*ask, "drafter=sql").out == pool(*ask, "drafter=").out != ""


def test_a_router_learns_from_measured_accept_lengths_of_the_pool(pool):
    small = ("router.num_train=4", "router.num_val=2", "router.num_test=2", "router.max_steps=4")
    learn = ("train-policy", "policy=router", "experiment=smoke", "router.domains=[sql,math]", *small)
    measured = (*learn, "router.labels=measured", "router.max_new_tokens=6")
    done = pool(*measured)
    assert done.code == 0 and "best MAT" in done.out, done.err
    folder = pool.artifact("policies", "router")
    spec = json.loads((folder / "router.json").read_text())
    assert spec["labels"] == ["general", "math", "sql", "retrieval"]
    assert {parent["name"] for parent in open_artifact(folder, "policies").parents} == {"general", "math", "sql"}
    assert "was made before" in pool(*measured).err
    assert "with other settings" in pool(*measured, "router.drafters=[sql,math]").one_line()
    assert "needs at least two drafters" in pool(*measured, "router.drafters=[sql]", "name=one").one_line()
    assert "read by router.labels=measured only" in pool(*learn, "router.drafters=[sql,math]").one_line()
    ask = ("generate", "drafter=pool", "prompt=How many?", "max_new_tokens=6", "colour=never")
    assert pool(*ask, "pool.selector=router", "pool.router=router").out == pool(*ask, "drafter=").out


@pytest.mark.parametrize("selector", ["normalhedge", "metasd_ucb"])
def test_a_pool_with_a_selector_gives_the_targets_text(pool, selector):
    ask = ("generate", "prompt=Which users are active?", "max_new_tokens=12")
    assert pool(*ask, "drafter=pool", f"pool.selector={selector}").out == pool(*ask, "drafter=").out


def test_shipped_drafters_are_found_by_name_unless_runs_have_one(pool, monkeypatch):
    shipped = pool.folder / "shipped"
    shutil.copytree(pool.runs / "tiny" / "drafters", shipped / "tiny" / "drafters")
    for module in (locate, checkpoint, parents):
        monkeypatch.setattr(module, "SHIPPED", shipped)
    shutil.rmtree(pool.runs / "tiny" / "drafters")
    assert locate.list_artifacts(pool.runs, "tiny", "drafters") == ["general", "math", "sql"]
    assert locate.find_artifact(pool.runs, "tiny", "drafters", "sql") == shipped / "tiny" / "drafters" / "sql"
    assert pool("generate", "prompt=x", "max_new_tokens=4", "drafter=sql").code == 0
    assert pool(*EXPERT, "domain=sql", "name=own").code == 0  # an expert of the shipped generalist
    assert pool("generate", "prompt=x", "max_new_tokens=4", "drafter=own").code == 0
    assert pool(*CONTINUED, "name=further").code == 0  # continues the shipped expert
    assert pool(*GENERAL, "drafter.draft_vocab_size=32").code == 0
    assert locate.find_artifact(pool.runs, "tiny", "drafters", "general") == pool.artifact("drafters", "general")
    assert (
        pool("generate", "prompt=x", "max_new_tokens=4", "drafter=own").code == 0
    )  # an expert of the shipped generalist
    assert pool("generate", "prompt=x", "max_new_tokens=4", "drafter=further").code == 0
