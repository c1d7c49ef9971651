"""Reports: the keys that other tools read, figures computed by hand, and mismatches as opposed to near ties."""

from __future__ import annotations

import gc
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.evaluation.lossless import (
    PlainComparison,
    count_mismatches,
    find_mismatches,
    first_difference,
    top2_margin,
)
from drafterforge.evaluation.methods import AUTOREGRESSIVE, Method
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.resume_cache import ResumeCache
from drafterforge.evaluation.rows import build_row, macro_speedup, paired_p, speedup_interval, tokens_per_s
from drafterforge.evaluation.timing import TimingRun, generate_in_turns, time_methods
from drafterforge.reporting.artifact import build_report
from drafterforge.reporting.console import print_table
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.rows import Cycle, Generation
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.tree.grow import TreeShape
from tests.models import tiny_drafter, tiny_target

# other tools read these keys
ROW = """
    method selector scheduler drafters domain temperature batch_size num_prompts num_tokens num_cycles mat accept_rate
    tokens_per_s speedup speedup_ci95 wilcoxon_p mismatches dtype numerics regret_cycles regret_tokens time_s
"""
TIMES = {"prefill", "draft", "verify", "select", "schedule", "host", "total"}
REPORT = "schema created drafterforge_version target device dtype numerics seed suite rows curves"
PROMPTS = [[3, 14, 15], [9, 26, 5, 35], [8, 9], [7, 9, 3, 2, 38], [4, 6], [26, 4, 33], [8, 3]]


def generation(tokens: int, seconds: float, accepts: list[int] = (), depth: int = 3) -> Generation:
    """An answer of given length and time."""
    cycles = [Cycle(depth, 8, accept) for accept in accepts]
    times = {"prefill": 0.1, "draft": 0.0, "verify": 0.0, "host": 0.0, "total": seconds}
    return Generation([1], list(range(tokens)), cycles=cycles, stop_reason="length", time_s=times)


def row(name: str, answers: list[Generation], baseline: list[Generation], **method: object) -> dict:
    options = {"domain": "sql", "mismatches": 0, "dtype": "float32"}
    return build_row(Method(name, None, **method), answers, baseline, **options)


@pytest.fixture(scope="module")
def measured() -> tuple[list[Method], dict[str, list[Generation]], object]:
    """Three methods on real prompts of a tiny target."""
    target = tiny_target()
    drafter = FusedDrafter(tiny_drafter(target), target.backbone.embedding)
    methods = [
        Method(AUTOREGRESSIVE, Engine(target)),
        Method("chain", Engine(target, drafter, TreeShape(4, 3, 1)), "static", "static", ["sql"]),
        Method("tree", Engine(target, drafter, TreeShape(9, 3, 3)), "static", "static", ["sql"]),
    ]
    return methods, generate_in_turns(methods, PROMPTS, 12), target


def report_of(measured) -> dict:
    methods, answers, _ = measured
    rows = [row(m.name, answers[m.name], answers[AUTOREGRESSIVE], **{
        "selector": m.selector, "scheduler": m.scheduler, "drafters": m.drafters
    }) for m in methods]  # fmt: skip
    options = {
        "device": "cpu",
        "dtype": "float32",
        "numerics": "fast",
        "seed": 0,
        "suite": "sql, held out",
        "curves": {},
    }
    return build_report(rows, target={"name": "tiny", "fingerprint": "f00d", "revision": None}, **options)


def test_a_report_has_exactly_the_keys_that_other_tools_read(measured):
    report = report_of(measured)
    assert report.keys() == set(REPORT.split())
    for row in report["rows"]:
        assert row.keys() == set(ROW.split()) and row["time_s"].keys() == TIMES
    assert report["schema"] == 1 and json.loads(json.dumps(report)) == report


def test_tokens_cycles_and_seconds_of_a_row_add_up(measured):
    methods, answers, _ = measured
    for method in methods:
        figures = row(method.name, answers[method.name], answers[AUTOREGRESSIVE], selector=method.selector)
        assert figures["num_prompts"] == len(PROMPTS)
        assert figures["num_tokens"] == sum(len(g.tokens) for g in answers[method.name])
        # the prefill emits one token without a cycle
        assert figures["num_tokens"] - figures["num_prompts"] == round(figures["mat"] * figures["num_cycles"])
        parts = sum(figures["time_s"][part] for part in TIMES - {"total"})
        assert parts <= figures["time_s"]["total"] * 1.01 + 0.01


def test_figures_equal_hand_computed_ones():
    baseline = [generation(10, 2.0, [1] * 9, 0), generation(6, 1.0, [1] * 5, 0)]
    answers = [generation(10, 1.0, [4, 4, 1]), generation(6, 0.5, [3, 2])]
    figures = row("tree", answers, baseline, selector="static")
    assert figures["tokens_per_s"] == round(16 / 1.5, 3) and figures["speedup"] == 2.0
    assert (figures["num_tokens"], figures["num_cycles"], figures["mat"]) == (16, 5, 2.8)
    assert figures["accept_rate"] == round((14 - 5) / 15, 4)
    assert figures["regret_cycles"] == figures["regret_tokens"] == 0.0
    base = row(AUTOREGRESSIVE, baseline, baseline)
    assert (base["speedup"], base["mat"], base["accept_rate"]) == (1.0, 1.0, None)
    assert base["speedup_ci95"] is base["wilcoxon_p"] is base["regret_cycles"] is None


def test_equal_timings_are_a_speedup_of_one():
    many = [generation(n, 0.1 * n) for n in (5, 9, 3, 12, 7, 8, 4)]
    figures = row("tree", many, many)
    assert figures["speedup"] == 1.0 and figures["speedup_ci95"] == [1.0, 1.0] and figures["wilcoxon_p"] is None


def test_the_interval_holds_the_ratio_and_narrows_with_prompts():
    random = np.random.default_rng(1)
    widths = []
    for count in (12, 300):
        tokens = random.integers(20, 60, count)
        baseline = [generation(n, n * s) for n, s in zip(tokens, random.uniform(0.8, 1.2, count), strict=True)]
        answers = [generation(n, n * s) for n, s in zip(tokens, random.uniform(0.4, 0.6, count), strict=True)]
        low, high = speedup_interval(answers, baseline)
        assert low < tokens_per_s(answers) / tokens_per_s(baseline) < high
        assert [low, high] == speedup_interval(answers, baseline)
        widths.append(high - low)
    assert widths[1] < widths[0] / 2


def test_too_few_prompts_have_no_interval():
    many = [generation(n, 0.1 * n) for n in (5, 9, 3, 12)]
    for count in (1, 2, 3):
        assert speedup_interval(many[:count], many[:count]) is None
        assert macro_speedup(many[:count], many[:count]) == {"speedup_macro": 1.0, "speedup_macro_ci95": None}
    assert speedup_interval(many, many) == macro_speedup(many, many)["speedup_macro_ci95"] == [1.0, 1.0]


def test_the_test_of_pairs_sees_a_difference_and_its_absence():
    baseline = [generation(10, 1.0 + 0.01 * i) for i in range(12)]
    faster = [generation(10, 0.5 + 0.013 * i) for i in range(12)]
    alike = [generation(10, 1.0 + 0.01 * i + (-1) ** i * 0.003) for i in range(12)]
    assert paired_p(faster, baseline) < 0.01 < 0.2 < paired_p(alike, baseline)
    assert paired_p(faster[:5], baseline[:5]) is None


@pytest.mark.parametrize("timed", ["in turns", "in groups"])
def test_no_answer_waits_for_the_collector_to_walk_through_what_is_loaded(timed, tmp_path):
    loaded, frozen = [[] for _ in range(1000)], []

    class Collected:
        numerics, target = "fast", SimpleNamespace(device=torch.device("cpu"), dtype=torch.float32)

        def generate(self, prompts: list[list[int]], count: int, *_: object) -> list[Generation]:
            walked = {id(item) for item in gc.get_objects()}  # those that are not frozen
            frozen.append(not walked & {id(item) for item in loaded})
            return [generation(count, 1.0) for _ in prompts]

    methods = [Method("tree", Collected())]
    if timed == "in turns":
        generate_in_turns(methods, [[1]] * 2, 5)
    else:
        time_methods(TimingRun(5, 0), methods, [Request([1], "sql")] * 2, [0, 1], ResumeCache(tmp_path))
    assert frozen == [False, True, True]  # the first answer is the warm-up


def test_methods_take_turns_in_the_first_position():
    class Recorder:
        def __init__(self, name: str, log: list[str]) -> None:
            self.name, self.log = name, log

        def generate(self, prompts: list[list[int]], count: int, sampling: Sampling = GREEDY) -> list[Generation]:
            self.log.append(self.name)
            return [generation(count, 1.0) for _ in prompts]

    log: list[str] = []
    methods = [Method(name, Recorder(name, log)) for name in "abc"]
    answers = generate_in_turns(methods, [[1]] * 4, 5)
    assert log[:3] == list("abc")  # warming up
    assert log[3:] == list("abc" + "bca" + "cab" + "abc")
    assert all(len(answers[name]) == 4 for name in "abc")
    assert generate_in_turns(methods, [], 5) == {"a": [], "b": [], "c": []}


def test_the_table_shows_every_row(measured):
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_table(report_of(measured), console)
    text = console.export_text()
    assert all(name in text for name in (AUTOREGRESSIVE, "chain", "tree", "1.00x", "sql, held out: tiny on cpu"))


# Mismatches.


def test_first_differences():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([], [1]) == 0


def test_lossless_methods_have_no_mismatches(measured):
    _, answers, target = measured
    for name in ("chain", "tree"):
        assert find_mismatches(name, target, answers[name], answers[AUTOREGRESSIVE]) == []


def answers_with(expected: list[Generation], prompt: int, position: int) -> list[Generation]:
    """The answers with one token changed."""
    answers = [Generation(g.prompt, [*g.tokens]) for g in expected]
    answers[prompt].tokens[position] += 1
    return answers


def test_a_mismatch_has_its_position_and_margin(measured):
    _, result, target = measured
    expected = result[AUTOREGRESSIVE]
    (mismatch,) = find_mismatches(
        "tree", target, answers_with(expected, 3, 4), expected, lambda: pytest.fail("no near tie")
    )
    ids = torch.tensor([[*expected[3].prompt, *expected[3].tokens[:4]]])
    logits = target.logits(target.forward(ids, torch.arange(ids.shape[1])[None], None)[0])[0, -1]
    best = logits.topk(2)
    assert int(best.indices[0]) == expected[3].tokens[4]
    margin = float(best.values[0] - best.values[1])
    assert mismatch.as_dict() == {
        "method": "tree", "prompt": 3, "position": 4, "margin": pytest.approx(margin, rel=1e-4), "rerun": False,
    }  # fmt: skip
    assert count_mismatches([mismatch]) == 1


class Answers:
    """An engine with fixed answers."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.calls = tokens, []

    def generate(self, prompts: list[list[int]], count: int, sampling: Sampling) -> list[Generation]:
        self.calls += [(prompt, count) for prompt in prompts]
        return [Generation(prompt, self.tokens[:count]) for prompt in prompts]


@pytest.mark.parametrize(("equal", "counts"), [(True, 0), (False, 1)])
def test_a_near_tie_is_decoded_again_in_float64_and_counts_if_it_differs_there_too(
    measured, monkeypatch, equal, counts
):
    _, result, target = measured
    monkeypatch.setattr("drafterforge.evaluation.lossless.top2_margin", lambda *args: 5e-5)
    expected = result[AUTOREGRESSIVE]
    fast, plain = Answers([1] * 99), Answers([1 if equal else 2] * 99)
    mismatches = find_mismatches("tree", target, answers_with(expected, 2, 1), expected, lambda: (fast, plain))
    assert [mismatch.rerun for mismatch in mismatches] == [equal] and count_mismatches(mismatches) == counts
    assert fast.calls == plain.calls == [(expected[2].prompt, len(expected[2].tokens))]


def test_a_sampled_difference_is_decoded_again_at_any_margin(measured, monkeypatch):
    _, result, target = measured
    monkeypatch.setattr("drafterforge.evaluation.lossless.top2_margin", lambda *args: 3.0)
    expected = result[AUTOREGRESSIVE]
    exact = Answers([1] * 99), Answers([1] * 99)
    greedy, sampled = (
        find_mismatches("tree", target, answers_with(expected, 2, 1), expected, lambda: exact, draws)
        for draws in (None, [Sampling(temperature=1.0)] * len(expected))
    )
    assert [count_mismatches(greedy), count_mismatches(sampled)] == [1, 0]


def test_an_answer_in_other_numerics_is_compared_with_plain_decoding_in_these(measured):
    _, result, target = measured
    expected = result[AUTOREGRESSIVE][0]
    (changed,) = answers_with([expected], 0, 1)

    def count(numerics: str, answer: Generation, reference: Generation) -> int:
        exact = Answers(expected.tokens), Answers(changed.tokens)  # differ in float64, too
        return len(PlainComparison(target, numerics, 12).mismatches("tree", [answer], [reference], lambda: exact))

    assert count("fast", changed, expected) == count("invariant", changed, expected) == 1
    assert count("invariant", expected, changed) == 0


def test_a_near_tie_is_no_mismatch_and_float64_is_tried_once(measured, monkeypatch):
    _, result, target = measured
    monkeypatch.setattr("drafterforge.evaluation.lossless.top2_margin", lambda *args: 5e-5)
    expected, tries = result[AUTOREGRESSIVE], []
    changed = answers_with(expected, 2, 1)
    exact = Answers([1] * 99), Answers([1] * 99)
    (mismatch,) = PlainComparison(target, "fast", 12).mismatches("tree", changed, expected, lambda: exact)
    assert (mismatch.prompt, mismatch.margin, mismatch.rerun) == (2, 5e-5, True)

    def too_large() -> None:
        tries.append(1)
        raise MemoryError

    settled = PlainComparison(target, "fast", 12)
    counts = [count_mismatches(settled.mismatches("tree", changed, expected, too_large)) for _ in range(2)]
    assert counts == [1, 1] and len(tries) == 1


def test_a_near_tie_without_float64_counts(measured, monkeypatch):
    _, result, target = measured
    monkeypatch.setattr("drafterforge.evaluation.lossless.top2_margin", lambda *args: 0.0)
    expected = result[AUTOREGRESSIVE]
    assert count_mismatches(find_mismatches("tree", target, answers_with(expected, 0, 0), expected)) == 1


def test_the_margin_of_tied_logits_is_zero():
    target = tiny_target()
    assert top2_margin(target, [3, 4, 5]) > 0
    target.backbone.logits = lambda states, invariant=False: torch.zeros(*states.shape[:-1], 61)
    assert top2_margin(target, [3, 4, 5]) == 0
