"""Names and options of selectors: mistakes are one line, and one line registers a selector."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from drafterforge.errors import ConfigError
from drafterforge.selectors import Context, Selector, learner, names, register, registry, selector
from drafterforge.selectors.naming import result_name
from tests.selectors.world import make

POOL = ["sql", "python"]


def refusal(*arguments, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        selector(*arguments, **options)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (("normalhege", POOL, 5), {}, "no selector 'normalhege'; did you mean 'normalhedge'?"),
        (("hedge", POOL, 5), {"etta": 1}, "no option of hedge 'etta'; did you mean 'eta'?"),
        (("normalhedge", POOL, 5), {"eta": 1}, "no option of normalhedge 'eta'"),
        (("metasd_ucb", POOL, 5), {"c": 1}, "no option of metasd_ucb 'c'"),
        (("static", POOL, 5), {"drafter": "sqll"}, "no drafter 'sqll'; did you mean 'sql'? (have: sql, python)"),
        (("static", [], 5), {}, "got an empty pool"),
        (("static", ["sql", "python", "sql"], 5), {}, "drafter 'sql' is in the pool twice"),
        (("static", POOL, 0), {}, "depth must be a whole number of at least 1, got 0"),
        (("hedge", POOL, 5), {"estimator": "ratio-rb"}, "did you mean 'ratio_rb'?"),
        (("hedge", POOL, 5), {"draw": "max"}, "no draw named 'max'"),
        (("hedge", POOL, 5), {"eta": -1}, "eta must be at least 0, got -1"),
        (("hedge", POOL, 5), {"eta": math.nan}, "eta must be at least 0, got nan"),
        (("hedge", POOL, 5), {"discount": 1.5}, "discount must be at least 0, at most 1, got 1.5"),
        (("ucb1", POOL, 5), {"window": "long"}, "window must be a whole number of at least 0, got 'long'"),
        (("hedge", POOL, 5), {"hybrid": "no"}, "hybrid must be true or false, got 'no'"),
        (("ucb1", POOL, 5), {"costs": [0.1]}, "costs needs a number for each of 2 drafters, got 1"),
        (("ucb1", POOL, 5), {"costs": [0.1, 0.0]}, "seconds per cycle of each drafter and must be > 0, got 0.0"),
    ],
)
def test_mistakes_end_in_one_line(arguments, options, words):
    assert words in refusal(*arguments, **options)


def test_learners_refuse_unknown_names_and_options():
    for arguments, options in ((("hedg", 3), {}), (("hedge", 3), {"rate": 1}), (("hedge", 0), {})):
        with pytest.raises(ConfigError):
            learner(*arguments, **options)


def test_a_new_selector_registers_in_one_line(monkeypatch):
    class Last(Selector):
        def select(self, context):
            return self.best(np.arange(self.num_drafters), context)

    monkeypatch.setattr(registry, "_SELECTORS", dict(registry._SELECTORS))
    register("last", Last)
    assert "last" in names()
    policy = selector("last", POOL, 5)
    policy.begin()
    assert policy.select(Context(0, 0)).drafter == 1


def test_a_new_drafter_needs_a_new_name_and_a_cost_if_the_others_have_one():
    with pytest.raises(ConfigError, match="twice"):
        make("ucb1").add_drafter("d0")
    with pytest.raises(ConfigError, match="must be > 0, got None"):
        make("ucb1", costs=[1.0, 1.0, 1.0]).add_drafter()


def test_the_selectors_room_imports_only_numpy():
    code = (
        "import sys, drafterforge.selectors; "
        "print(sorted({'torch', 'scipy', 'hydra', 'lightning', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_results_are_named_after_a_paper_only_with_its_constants():
    assert result_name("ucbspec", {"seed": 3}) == "ucbspec"
    assert result_name("ucbspec", {"scale": 0.1}) == "ucbspec, tuned"
    assert result_name("normalhedge", {"discount": 0.8, "hybrid": True}) == "normalhedge, tuned"
    assert result_name("hedgespec", {"prior": 4}) == "hedgespec"
