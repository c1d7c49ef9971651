"""Tables and sentences of `suite=auto` from curves made by hand."""

from __future__ import annotations

from drafterforge.reporting.auto_tables import auto_sentences, auto_tables

REGRET = {"autoregressive": 12.0, "general alone": 0.0, "auto": -1.25}
CURVE = {
    "domains": [
        {"domain": "all", "best_fixed": "general alone", "regret_s": REGRET, "regret_s_by_prompt": {"auto": 0.75}},
    ],
    "cells": [
        {
            "temperature": 0.5,
            "batch_size": 2,
            "context": 256.0,
            "best_fixed": "store",
            "regret_s": {"auto": 3, "store": 0},
        }
    ],
    "replay": {
        "num_prompts": 64,
        "live_tokens_per_s": 81.2,
        "predicted_tokens_per_s": 84.16,
        "median_error": 0.0412,
        "same_load": {"num_prompts": 64, "live_tokens_per_s": 81.2, "predicted_tokens_per_s": 82, "median_error": 0.02},
    },
}


def test_one_table_holds_the_regret_of_every_method_in_every_part():
    regret = auto_tables({"curves": {"auto": CURVE}})[2]
    names = ["part", "best fixed method", "auto", "auto, prompt by prompt", "autoregressive", "general alone", "store"]
    assert regret.headings == names
    assert regret.cells == [
        ["all", "general alone", "-1.25", "0.75", "12.00", "0.00", ""],
        ["temperature 0.5, batch 2, context 256", "store", "3.00", "", "", "", "0.00"],
    ]


def test_the_replay_has_a_table_and_a_sentence():
    replay = auto_tables({"curves": {"auto": CURVE}})[3]
    assert [row[1:] for row in replay.cells] == [["64", "81.2", "84.2", "4.1%"], ["64", "81.2", "82.0", "2.0%"]]
    (sentence,) = auto_sentences({"curves": {"auto": CURVE}})
    assert "error by prompt of 4.1%, of 2.0% at the same load" in sentence


def test_reports_without_regret_and_replay_have_neither_table():
    for curve in ({}, {"domains": [{"domain": "all", "best": "store"}], "replay": None}):
        assert not any(table.cells for table in auto_tables({"curves": {"auto": curve}})[2:])
        assert auto_sentences({"curves": {"auto": curve}}) == []
