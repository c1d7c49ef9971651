"""Mistakes in the settings of a pool or an expert are one line; mistakes in names need no target."""

from __future__ import annotations

import pytest

from drafterforge.assembly import engines
from drafterforge.pipelines import eval as evaluate

pytestmark = pytest.mark.slow  # many short tests


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
    "name='my sql' is no name of a drafter: it is a letter or digit": ("train-drafter", "domain=sql", "name='my sql'"),
    "name=auto is reserved for the default of drafter=": ("train-drafter", "domain=sql", "name=auto"),
    "name=a+b has a +, which joins the names of hybrids": ("import", "path=x", "name=a+b"),
    "suite.questions= is read by suite=papers|auto|vllm only": ("eval", "suite=quick", "suite.questions=x"),
    "calibrate measures this machine": ("calibrate", "latency=h100-8b"),
    "domain.weights= are the shares of domain=general": ("prepare-data", "domain=sql", "domain.weights.math=1"),
    "target.taps takes one list for all drafters": (
        "train-drafter",
        "domain=sql",
        "drafter=lora",
        "name=[a,b]",
        "target.taps=[[2,15,27],[4,15,25]]",
    ),
    "private= is read with push=OWNER/NAME only": ("export", "private=false"),
    "format=vllm holds single drafters": ("export", "format=vllm", "pool.selector=ucb1"),
    "pool.options.eta must be a value, got ''": ("generate", "drafter=pool", "prompt=x", "pool.options.eta="),
    "drafter.norm_output=true differs from false of drafter.init=sql": (
        "train-drafter",
        "domain=sql",
        "answers=general",
        "drafter.init=sql",
        "name=mine",
        "drafter.norm_output=true",
    ),
    "drafter.fc_norm=true differs from false of drafter.init=general": (
        "train-drafter",
        "domain=sql",
        "answers=general",
        "drafter=lora",
        "drafter.fc_norm=true",
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


NAMES = {  # mistakes that commands refuse before they load the target
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


@pytest.mark.parametrize("expected", NAMES)
def test_mistakes_in_names_are_refused_before_the_target_is_loaded(bench, monkeypatch, expected):
    def never(*_):
        raise AssertionError("loaded before the names were checked")

    for module in (engines, evaluate):
        monkeypatch.setattr(module, "load_target", never)
    assert expected in bench(*NAMES[expected]).one_line()


@pytest.mark.parametrize("expected", MISTAKES)
def test_mistakes_get_one_line(pool, expected):
    assert expected in pool(*MISTAKES[expected]).one_line()
