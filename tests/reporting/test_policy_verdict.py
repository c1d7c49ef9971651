"""The verdict on a policy says in one sentence whether it is shown to beat the best static tree."""

from __future__ import annotations

from drafterforge.reporting.console import print_live_schedules
from drafterforge.reporting.policy_verdict import beats_best_static, policy_verdict, seeds_sentence
from tests.reporting.builders import live_row

NAME = "policy marginal"


def row(gain: float, p: float | None, num_prompts: int = 8) -> dict:
    more = {"over_best_static": gain, "p_over_best_static": p, "num_prompts": num_prompts, "policy_share": 0.01}
    return live_row(NAME, 1.5, [1.4, 1.6], **more)


def test_a_significant_gain_is_shown():
    rows = [live_row("autoregressive", 1.0, None), row(1.036, 0.0003)]
    assert beats_best_static(rows, NAME)
    assert policy_verdict(rows, NAME) == (
        "policy marginal is shown to beat the best static tree: +3.6 % tokens/s live on 8 prompts, p = 0.0003"
    )


def test_a_loss_a_chance_gain_and_few_prompts_show_nothing():
    for rows in ([row(0.914, 0.9)], [row(1.2, 0.06)], [row(1.2, None, 2)], []):
        assert not beats_best_static(rows, NAME)
        assert policy_verdict(rows, NAME).startswith("policy marginal is not shown to beat the best static tree: ")
    assert "-8.6 % tokens/s live on 2 prompts; a test needs 6 prompts" in policy_verdict([row(0.914, None, 2)], NAME)


def test_the_spread_over_seeds_is_one_sentence():
    replayed = {"mean": 0.97, "sd": 0.012, "values": [0.98, 0.96]}
    live = {"mean": 0.95, "sd": 0.01, "values": [0.94, 0.96], "ci95": [0.93, 0.97]}
    start = "tokens/s over the best static tree, mean and deviation of 2 seeds: replayed 0.970x ± 0.012 (0.980, 0.960)"
    assert seeds_sentence({"seeds": [0, 1], "replayed": replayed}) == start
    end = "; live 0.950x ± 0.010 (0.940, 0.960), 95 % [0.930, 0.970]"
    assert seeds_sentence({"seeds": [0, 1], "replayed": replayed, "live": live}) == start + end
    few = {"seeds": [0, 1], "replayed": replayed, "live": live | {"ci95": None}}  # too few prompts
    assert seeds_sentence(few) == (start + end).partition(", 95 %")[0]


def test_the_live_table_has_the_interval_that_its_legend_explains(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    print_live_schedules([row(1.036, 0.0003)])
    assert "1.40-1.60" in capsys.readouterr().out
