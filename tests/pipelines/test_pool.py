"""A generalist, LoRA experts of it, and `eval` over the pool, from the command line on a tiny target."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from drafterforge.artifacts import locate
from drafterforge.artifacts.folder import open_artifact
from drafterforge.assembly import engines
from drafterforge.assembly.pools import build_pool, open_pool
from drafterforge.assembly.runs import RunsFolder
from drafterforge.cli import main
from drafterforge.config.pool import PoolConfig
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.config.target import TargetConfig
from drafterforge.data.answers import AnswerSet
from drafterforge.data.joined import JoinedAnswers
from drafterforge.drafters.eagle3 import checkpoint
from drafterforge.drafters.eagle3.fused import AdaptedLinear
from drafterforge.evaluation import timing
from drafterforge.evaluation.timing import decode
from drafterforge.pipelines import eval as evaluate
from drafterforge.pipelines import train_drafter
from drafterforge.targets.load import load_target
from drafterforge.training import parents
from tests.pipelines.conftest import EXPERT, GENERAL, SMOKE, ever_better

pytestmark = pytest.mark.slow  # many short ones


CONTINUED = ("train-drafter", "domain=sql", "answers=general", "drafter=lora", "drafter.init=sql", *SMOKE)
NORMED = ("drafter.fc_norm=true", "drafter.norm_output=true")


def test_a_pool_of_eagle_3_1_trains_decodes_the_targets_text_and_goes_through_an_export(bench):
    general, expert = (*GENERAL, *NORMED), (*EXPERT, "domain=sql")
    assert bench(*general).code == bench(*expert, NORMED[0]).code == 0
    assert "was trained before" in bench(*expert).err  # the parent's norms, typed or not
    folder = bench.artifact("drafters", "general")
    config = json.loads((folder / "config.json").read_text())
    assert config["fc_norm"] is config["norm_output"] is True
    gains = load_file(folder / "model.safetensors")["fc_norm.2.weight"].float()
    assert (gains - 1).abs().mean() > 0.05  # it started at the feature's size
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


def test_an_expert_is_a_small_adapter_that_names_its_generalist(pool):
    general = open_artifact(pool.artifact("drafters", "general"), "drafters")
    manifest = open_artifact(pool.artifact("drafters", "sql"), "drafters")
    assert {"adapter/adapter_config.json", "adapter/adapter_model.safetensors"} <= manifest.files.keys()
    assert "model.safetensors" not in manifest.files
    assert {"kind": "drafters", "name": "general", "sha256": general.digest} in manifest.parents
    tensors = load_file(pool.artifact("drafters", "sql") / "adapter" / "adapter_model.safetensors")
    assert any(tensor.any() for name, tensor in tensors.items() if "lora_B" in name)  # it has learned something
    assert pool.finished().count("tiny/answers/general") == 1 and "tiny/answers/sql" not in pool.finished()


def test_an_expert_learns_from_its_own_domain_s_answers_alone(pool):
    answers = JoinedAnswers([AnswerSet.open(pool.artifact("answers", "general"))])
    for split in ("train", "val", "test"):
        full, own = answers.rows(split), answers.rows(split, "sql")
        assert {row.domain for row in own} == {"sql"} and {row.domain for row in full} > {"sql"}
        assert [full[row].input_ids for _, row in own.locations.tolist()] == [row.input_ids for row in own]
        assert len(answers.rows(split, "general")) == len(answers.rows(split, "medical")) == len(full)


def test_experts_of_a_pool_share_their_generalist_s_weights(pool):
    target = load_target(TargetConfig(source="hf", model=str(pool.target), dtype="float32"))
    target.name = "tiny"
    opened = open_pool(pool.runs, target, ["general", "sql", "math", "retrieval"])
    for name in ("sql", "math"):
        linear = opened[name].linears["head"]
        assert isinstance(linear, AdaptedLinear) and linear.base is opened["general"].linears["head"]


def test_an_expert_decodes_the_target_s_text(pool):
    ask = ("generate", "prompt=Which users are active?", "max_new_tokens=12")
    assert pool(*ask, "drafter=sql").out == pool(*ask, "drafter=").out != ""


def test_eval_reports_drafters_selectors_and_live_runs(pool):
    done = pool("eval", "suite=mixed", "experiment=smoke")
    assert done.code == 0, done.err
    folder = pool.artifact("reports", "mixed")
    open_artifact(folder, "reports")
    report = json.loads((folder / "report.json").read_text())
    names = ["general", "math", "sql", "retrieval"]
    live = [row["method"] for row in report["rows"] if row["source"] == "live"]
    assert live == ["autoregressive", "general alone", "hedgespec over the pool"]
    replays = {row["method"]: row for row in report["rows"] if row["source"] == "replay"}
    assert {*(f"{name} alone" for name in names), "best in hindsight", "hedgespec", "ucbspec"} <= replays.keys()
    best = replays["best in hindsight"]
    assert best["of_hindsight"] == 1.0 and all(row["num_tokens"] == best["num_tokens"] for row in replays.values())
    assert all(row["num_cycles"] >= best["num_cycles"] for name, row in replays.items() if name.endswith("alone"))
    assert all(one["other_text"] == [] for one in report["curves"]["live"])
    for row in report["rows"][:3]:
        assert row["mismatches"] == 0 and row["time_s"]["total"] > 0
    assert report["rows"][2]["time_s"]["select"] > 0
    assert "ucbspec" in done.out and "report.json" in done.out and "p: one-sided Wilcoxon" in done.out
    assert {row["scheduler"] for row in report["rows"][1:]} == {"static"}
    page, written = ((folder / name).read_text() for name in ("report.html", "report.md"))
    assert "Lossless: 0 mismatches" in page and "Drafters by domain" in page
    assert "Lossless: 0 mismatches" in written and "| hedgespec |" in written
    again = pool("eval", "compare=mixed,mixed")
    assert again.code == 0 and "no significant regression" in again.out


def test_a_lossy_decoder_is_reported_in_red_and_exits_with_1(pool, monkeypatch):
    def lossy(method, *rest):
        found = decode(method, *rest)
        if method.name == "general alone":
            tokens = found.answers[0].tokens
            tokens[-1] = (tokens[-1] + 1) % 3
        return found

    monkeypatch.setattr(timing, "decode", lossy)
    done = pool("eval", "suite=mixed", "experiment=smoke", "suite.selectors=[hedgespec]", "suite.check_live=false")
    folder = pool.artifact("reports", "mixed")
    assert done.code == 1 and "not lossless: general alone: 1 of" in done.err and "report.html" in done.err
    assert "NOT LOSSLESS: 1 mismatch" in (folder / "report.html").read_text()
    open_artifact(folder, "reports")


MISTAKES = {
    "names sql more than once": ("eval", "suite=mixed", "pool.drafters=[sql,sql]"),
    "no drafters named 'sqll'": ("eval", "suite=mixed", "pool.drafters=[sqll]"),
    "no selector 'normalhege'; did you mean 'normalhedge'": ("eval", "suite=mixed", "pool.selector=normalhege"),
    "no option of normalhedge 'estimater'; did you mean 'estimator'": (
        "eval",
        "suite=mixed",
        "pool.selector=normalhedge",
        "pool.options={estimater: ratio}",
    ),
    "suite.conversations must lie in [0, 1]": ("eval", "suite=mixed", "suite.conversations=2"),
    "name=pool is reserved for the pool of all drafters": ("train-drafter", "domain=sql", "name=pool"),
    "drafter.fc_norm=true differs from false of drafter.init=general": (
        "train-drafter",
        "domain=sql",
        "answers=general",
        "drafter=lora",
        "drafter.fc_norm=true",
    ),
    "drafter.norm_output=true differs from false of drafter.init=sql": (
        "train-drafter",
        "domain=sql",
        "answers=general",
        "drafter.init=sql",
        "name=mine",
        "drafter.norm_output=true",
    ),
    "drafter=retrieval has no key drafter.norm_output; drafter=eagle3 has": (
        "train-drafter",
        "domain=sql",
        "drafter=retrieval",
        "drafter.norm_output=true",
    ),
    "drafter.head=target is for drafter.tuning=full": (
        "train-drafter",
        "domain=sql",
        "drafter=lora",
        "drafter.head=target",
    ),
    "type drafter.init=general": ("train-drafter", "domain=sql", "drafter.tuning=lora"),
    "drafter.lora.rank must be >= 1": ("train-drafter", "domain=sql", "drafter=lora", "drafter.lora.rank=0"),
    "drafter.lora.targets must be one of": ("train-drafter", "domain=sql", "drafter=lora", "drafter.lora.targets=[x]"),
}


TOO_LATE = {  # what can be told without a target, and so before one is loaded
    "no selector 'hedgspec'; did you mean 'hedgespec'": ("eval", "suite=mixed", "suite.selectors=[hedgspec]"),
    "the pool has none; type pool.router=NAME": ("eval", "suite=mixed", "suite.selectors=[router]"),
    "best in hindsight": ("eval", "suite=mixed", "suite.selectors=[oracle]"),
    "no selector 'normalhege'": ("generate", "prompt=x", "drafter=pool", "pool.selector=normalhege"),
    "levels follows from the depth of the pool's trees": (
        "generate",
        "prompt=x",
        "drafter=pool",
        "pool.options={levels: 3}",
    ),
    "selector=oracle needs to know": ("generate", "prompt=x", "drafter=pool", "pool.selector=oracle"),
    "runtime.depth= has no effect when pool.scheduler=planner": (
        "generate",
        "prompt=x",
        "drafter=retrieval",
        "pool.scheduler=planner",
        "runtime.depth=2",
    ),
    "runtime.top_k must be <= 1024, got 8192": ("generate", "prompt=x", "runtime.top_k=8192"),
    "no option of ucb1 'cc'": ("generate", "prompt=x", "drafter=pool", "pool.selector=ucb1", "pool.options={cc: 1}"),
    "no selector 'bundled'": ("generate", "prompt=x", "bundle=./house", "pool.selector=bundled"),
    "pool.selector=ucb1 takes no advice": ("eval", "suite=mixed", "pool.selector=ucb1", "pool.router=router"),
    "got pool.read_interval=2; leave it out": ("eval", "suite=mixed", "pool.read_interval=2"),
    "pool.selector= is read by drafter=pool only, not with drafter=retrieval": (
        "generate",
        "prompt=x",
        "drafter=retrieval",
        "pool.selector=ucb1",
    ),
    "pool.router= is read by drafter=pool only, not with drafter=auto": ("generate", "prompt=x", "pool.router=router"),
    "not with drafter=sql; type drafter=pool": (
        "generate",
        "prompt=x",
        "bundle=./house",
        "drafter=sql",
        "pool.selector=ucb1",
    ),
}


@pytest.mark.parametrize("expected", TOO_LATE)
def test_mistakes_in_names_do_not_wait_for_the_target(bench, monkeypatch, expected):
    def never(*_):
        raise AssertionError("loaded before the names were checked")

    for module in (engines, evaluate):
        monkeypatch.setattr(module, "load_target", never)
    assert expected in bench(*TOO_LATE[expected]).one_line()


def test_eval_s_seed_is_that_of_selectors_that_draw(pool):
    target = load_target(TargetConfig(source="hf", model=str(pool.target), dtype="float32"))
    target.name = "tiny"
    cfg = PoolConfig(drafters=["sql", "retrieval"], selector="random")
    made, shape = build_pool(cfg, RuntimeConfig(), RunsFolder(pool.runs, target), seed=7)
    assert made.selector(shape).seed == 7
    cfg = PoolConfig(drafters=["sql", "retrieval"], selector="random", options={"seed": 3})
    assert build_pool(cfg, RuntimeConfig(), RunsFolder(pool.runs, target), seed=7)[0].selector(shape).seed == 3


def test_eval_with_a_router_advises_what_it_replays(pool):
    asked = (
        "policy=router",
        "router.num_train=6",
        "router.num_val=2",
        "router.num_test=2",
        "traces.domains=[sql,math]",
    )
    assert pool("train-policy", *asked).code == 0
    expected = ("pool.router=router", "suite.domains=[sql,math]", "suite.selectors=[hedgespec,router,random]")
    done = pool("eval", "suite=mixed", "experiment=smoke", *expected, "pool.drafters=[sql,math]", "seed=5")
    assert done.code == 0, done.err
    report = json.loads((pool.artifact("reports", "mixed") / "report.json").read_text())
    rows = {row["method"]: row for row in report["rows"] if row["source"] == "replay"}
    assert rows["hedgespec"]["options"] == {"prior": 4} and "router" in rows
    assert all(one["requests_with_other_cycles"] == 0 for one in report["curves"]["live"])


@pytest.mark.parametrize("expected", MISTAKES)
def test_mistakes_get_one_line(pool, expected):
    assert expected in pool(*MISTAKES[expected]).one_line()


def test_a_router_learns_from_what_the_pool_s_drafters_were_measured_at(pool):
    small = ("router.num_train=4", "router.num_val=2", "router.num_test=2", "router.max_steps=4")
    learn = ("train-policy", "policy=router", "experiment=smoke", "router.domains=[sql,math]", *small)
    measured = (*learn, "router.labels=measured", "router.max_new_tokens=6")
    done = pool(*measured)
    assert done.code == 0 and "best MAT" in done.out, done.err
    folder = pool.artifact("policies", "router")
    spec = json.loads((folder / "router.json").read_text())
    assert spec["labels"] == ["general", "math", "sql", "retrieval"]
    assert {one["name"] for one in open_artifact(folder, "policies").parents} == {"general", "math", "sql"}
    assert "was made before" in pool(*measured).err
    assert "with other settings" in pool(*measured, "router.drafters=[sql,math]").one_line()
    assert "needs at least two drafters" in pool(*measured, "router.drafters=[sql]", "name=one").one_line()
    assert "read by router.labels=measured only" in pool(*learn, "router.drafters=[sql,math]").one_line()
    ask = ("generate", "drafter=pool", "prompt=How many?", "max_new_tokens=6", "colour=never")
    assert pool(*ask, "pool.selector=router", "pool.router=router").out == pool(*ask, "drafter=").out


def test_an_empty_pool_says_how_to_fill_it(bench):
    assert "the pool is empty" in (line := bench("eval", "suite=mixed").one_line())
    assert "drafterforge train-drafter domain=sql" in line


def test_an_expert_without_its_generalist_is_refused(pool):
    shutil.rmtree(pool.artifact("drafters", "general"))
    line = pool("generate", "prompt=x", "drafter=sql").one_line()
    assert "needs its generalist 'general'; put it at" in line


def test_an_expert_of_another_generalist_is_refused(pool):
    pool(*GENERAL, "seed=1", "overwrite=true")
    line = pool("generate", "prompt=x", "drafter=sql").one_line()
    assert "with digest" in line and "overwrite=true" in line


def additions(pool, name):
    return load_file(pool.artifact("drafters", name) / "adapter" / "adapter_model.safetensors")


def test_an_expert_goes_on_from_another_and_changes_its_additions_alone(pool):
    general = (pool.artifact("drafters", "general") / "model.safetensors").read_bytes()
    with ever_better():
        done = pool(*CONTINUED, "name=mine")
    assert done.code == 0, done.err
    manifests = {
        name: open_artifact(pool.artifact("drafters", name), "drafters") for name in ("general", "sql", "mine")
    }
    mine = manifests["mine"]
    assert [one for one in mine.parents if one["kind"] == "drafters"] == [manifests["general"].as_parent()]
    assert mine.config["origin"] == manifests["sql"].as_parent() and mine.config["drafter"]["lora"]["rank"] == 4
    assert (pool.artifact("drafters", "general") / "model.safetensors").read_bytes() == general
    assert not [name for name in mine.files if name.endswith("model.safetensors") and "adapter" not in name]
    before, after = additions(pool, "sql"), additions(pool, "mine")
    assert {name: tensor.shape for name, tensor in before.items()} == {
        name: tensor.shape for name, tensor in after.items()
    }
    assert any(not torch.equal(before[name], after[name]) for name in before)
    target = load_target(TargetConfig(source="hf", model=str(pool.target), dtype="float32"))
    tokens = [
        checkpoint.load_drafter(pool.artifact("drafters", name), target.backbone.embedding).token_ids
        for name in manifests
    ]
    assert torch.equal(tokens[0], tokens[2])
    ask = ("generate", "prompt=Which users are active?", "max_new_tokens=12")
    assert pool(*ask, "drafter=mine").out == pool(*ask, "drafter=").out != ""
    assert "was trained before" in pool(*CONTINUED, "name=mine").err
    pool.capsys.readouterr()
    assert main(["inspect", str(pool.artifact("drafters", "mine"))]) == 0
    assert f"drafters sql ({manifests['sql'].digest[:12]})" in pool.capsys.readouterr().out


def test_an_expert_that_training_does_not_better_is_the_one_it_went_on_from(pool):
    with ever_better(by=-1):
        done = pool(*CONTINUED, "name=same")
    assert done.code == 0, done.err
    before, after = additions(pool, "sql"), additions(pool, "same")
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert_start_was_kept(pool, done.err, "same")


def assert_start_was_kept(pool, told: str, name: str) -> None:
    """It is told, and the curve and the manifest say so too."""
    curve = json.loads((pool.artifact("drafters", name) / "curves.json").read_text())
    start, *later = [point["val/accept_length"] for point in curve]
    assert [point["step"] for point in curve] == [0, 2, 4]
    metrics = open_artifact(pool.artifact("drafters", name), "drafters").metrics
    assert (metrics["best_step"], metrics["val_accept_length"], metrics["steps"]) == (0, start, 4)
    lengths = f"accept length {max(later):.2f} at best against {start:.2f} at the start"
    assert f"training did not improve on the weights it started from, which were kept: {lengths}" in told


def test_a_whole_drafter_that_training_does_not_better_is_the_one_it_went_on_from(pool):
    again = ("train-drafter", "domain=sql", "answers=general", "drafter.init=general", "name=again", *SMOKE)
    with ever_better(by=-1):
        done = pool(*again)
    assert done.code == 0, done.err
    before, after = (pool.artifact("drafters", name) / "model.safetensors" for name in ("general", "again"))
    assert before.read_bytes() == after.read_bytes()
    assert_start_was_kept(pool, done.err, "again")


def test_a_new_domain_is_by_default_an_expert_of_the_generalist(pool):
    small = ("drafter.lora.rank=4", "drafter.draft_vocab_size=16384")  # the default, where smoke says otherwise
    with ever_better():
        done = pool("train-drafter", "domain=python", "answers=general", *SMOKE, *small)
    assert done.code == 0 and "python adds a LoRA to general" in done.err, done.err
    manifest = open_artifact(pool.artifact("drafters", "python"), "drafters")
    assert (manifest.config["drafter"]["init"], manifest.config["drafter"]["tuning"]) == ("general", "lora")
    assert "general" in [parent["name"] for parent in manifest.parents if parent["kind"] == "drafters"]
    for method in ("general alone", "python alone", "general+retrieval", "python+retrieval"):
        assert method in done.out
    assert "1 prompt is too few for a verdict" in done.out
    next_command = done.out.splitlines()[-1].partition("next: drafterforge generate ")[2]
    drafters = ("", "general", "python", "general+retrieval", "python+retrieval")
    assert next_command.split()[0] in [f"drafter={name}" for name in drafters]  # the fastest, whichever it was
    explicit = (*EXPERT, "domain=python", "drafter.draft_vocab_size=16384")
    assert "was trained before" in pool(*explicit).err  # the same as typed in full
    done = pool("train-drafter", "domain=python", "answers=general", "drafter=eagle3", "name=new", *SMOKE)
    assert open_artifact(pool.artifact("drafters", "new"), "drafters").config["drafter"]["tuning"] == "full"


REFUSED = {
    "drafter.lora.rank=8 differs from 4 of sql, whose training continues": ("name=mine", "drafter.lora.rank=8"),
    "drafter.lora.targets=['fc'] differs from": ("name=mine", "drafter.lora.targets=[fc]"),
    "drafter.init=sql is the expert that this would write itself; type name=OTHER": (),
}


@pytest.mark.parametrize("expected", REFUSED)
def test_an_expert_keeps_its_shape_and_its_place(pool, expected, monkeypatch):
    def never(*_):
        raise AssertionError("answered prompts before the mistake was told")

    monkeypatch.setattr(train_drafter, "find_answers", never)
    assert expected in pool(*CONTINUED, *REFUSED[expected]).one_line()


@pytest.mark.parametrize("selector", ["normalhedge", "metasd_ucb"])
def test_generate_takes_the_whole_pool(pool, selector):
    ask = ("generate", "prompt=Which users are active?", "max_new_tokens=12")
    assert pool(*ask, "drafter=pool", f"pool.selector={selector}").out == pool(*ask, "drafter=").out


def test_what_is_shipped_is_found_by_name_and_yields_to_runs(pool, monkeypatch):
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
    assert pool(*CONTINUED, "name=further").code == 0  # of the shipped expert
    assert pool(*GENERAL, "drafter.draft_vocab_size=32").code == 0
    assert locate.find_artifact(pool.runs, "tiny", "drafters", "general") == pool.artifact("drafters", "general")
    assert pool("generate", "prompt=x", "max_new_tokens=4", "drafter=own").code == 0  # still of the shipped one
    assert pool("generate", "prompt=x", "max_new_tokens=4", "drafter=further").code == 0
