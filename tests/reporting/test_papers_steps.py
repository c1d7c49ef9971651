"""The commands of the papers' tables exist, and forms and claims name what exists."""

from __future__ import annotations

import shlex

import pytest

from drafterforge.config.commands import EvaluateConfig, PrepareDataConfig, TrainDrafterConfig, TrainPolicyConfig
from drafterforge.config.compose import load_config
from drafterforge.config.several import split_overrides
from drafterforge.data.questions import SPEC_BENCH
from drafterforge.evaluation.suite_checks import check_suite
from drafterforge.reporting.papers.claims import CLAIMS
from drafterforge.reporting.papers.forms import FORMS
from drafterforge.reporting.papers.page import render_papers
from drafterforge.reporting.papers.policy_steps import EXPERIMENTS, HOLD_CYCLES
from drafterforge.reporting.papers.selector_steps import BLACK_BOX, MANY, QUESTIONS, TRAINED_EXPERTS
from drafterforge.reporting.papers.steps import STEPS, commands_of
from drafterforge.reporting.papers.tables import paper_tables
from drafterforge.reporting.published import published
from drafterforge.selectors import names as selector_names
from drafterforge.selectors.bandit import REWARDS
from tests.reporting.paper_builders import report, tables

SEEDED = ("resps", "resps-maxent", "ltd")  # policies with three training seeds


def test_lines_name_selectors_that_exist():
    names = {"static", "none", "oracle", *selector_names()}
    signals = next(form for form in FORMS if form.key == "metasd_signal")
    assert {line.selector for form in FORMS if form is not signals for line in form.lines} <= names
    assert [line.selector for line in signals.lines] == ["divergence", "efficiency", "coverage"]
    assert {line.selector for line in signals.lines} == REWARDS.keys()


@pytest.mark.slow
def test_the_commands_that_tables_suggest_exist():
    typed = {tuple(shlex.split(command)) for form in FORMS for command in form.commands}
    assert typed == {tuple(shlex.split(command)) for command in commands_of(tuple(step.name for step in STEPS))}
    by_command = {name: [keys for _, command, *keys in typed if command == name] for _, name, *_ in typed}
    assert by_command.keys() == {"train-policy", "eval", "prepare-data", "train-drafter"}
    expected = {line.schedule for form in FORMS for line in form.lines} | {"router"}
    expected |= {f"resps-hold{count}" for count in HOLD_CYCLES}
    for keys in by_command["train-policy"]:
        cfg = load_config("train_policy", TrainPolicyConfig, keys)
        suffixes = cfg.latency.device, f"t{cfg.traces.temperature:g}"
        name = cfg.name.removesuffix(f"-{suffixes[0]}").removesuffix(f"-{suffixes[1]}")
        assert (name or cfg.policy.name or cfg.policy.method) in expected
        if cfg.live.num_prompts and cfg.policy.method in EXPERIMENTS:
            assert cfg.grid.name == f"{cfg.policy.method}-paper"
            assert cfg.runs_dir == f"runs/{cfg.policy.method}"
            has_seeds = name in SEEDED and not cfg.traces.temperature
            assert cfg.seeds == ([1, 2] if has_seeds else [])
            if not cfg.traces.temperature and cfg.policy.method == "ltd":
                assert (cfg.policy.size_decisions, cfg.policy.depth_decisions) == (100_000, 1_000_000)
    for keys in by_command["eval"]:
        check_suite(load_config("eval", EvaluateConfig, keys))
    for keys in by_command["prepare-data"]:
        assert load_config("prepare_data", PrepareDataConfig, keys).name == "papers-answers"
    drafters = []
    for keys in by_command["train-drafter"]:
        for each in split_overrides("train_drafter", TrainDrafterConfig, keys):
            cfg = load_config("train_drafter", TrainDrafterConfig, each)
            assert cfg.answers == ["papers-answers"]
            drafters.append(cfg.drafter_name)
    assert sorted(drafters) == sorted((*BLACK_BOX, *TRAINED_EXPERTS))
    assert len(MANY) == 32 and len(SPEC_BENCH) <= QUESTIONS  # each of its groups is timed


def test_a_table_says_what_is_smaller_than_in_the_paper():
    table = tables(report())["priced"]
    assert "`policy.size_decisions=20000` (the paper: 100,000)" in table.reduced
    part = "`traces.num_train=64` of policies trained on sampled answers (the paper: 4,000 questions)"
    assert part in tables(report())["over_best"].reduced
    assert "decisions" not in tables(report())["ltd"].reduced  # by the paper's budget
    assert table.reduced in render_papers(*paper_tables([report()]))
    assert tables(report())["hedgespec"].reduced == ""


@pytest.mark.parametrize("paper", EXPERIMENTS)
def test_what_a_step_makes_smaller_is_larger_in_the_experiment(paper):
    cfg = load_config("train_policy", TrainPolicyConfig, [f"experiment={EXPERIMENTS[paper]}"])
    sizes = {size for step in STEPS if step.folder == paper for size in step.reductions}
    assert sizes
    for size in sizes:
        section, key = size.key.split(".")
        value = getattr(getattr(cfg, section), key)
        assert size.value < value and f"{value:,}" in size.paper


def test_claims_name_methods_and_figures_of_their_tables():
    by_key = {form.key: form for form in FORMS}
    for claim in CLAIMS:
        form = by_key[claim.form]
        lines = {line.name: line for line in form.lines}
        for name in filter(lambda name: isinstance(name, str), (claim.method, claim.over)):
            assert claim.figure in (lines[name].figures or form.figures)
        assert claim.paper in published().papers
