"""Known costs of a stream, and the error of predicted tokens per second, from measurements made by hand."""

from __future__ import annotations

import pytest

from drafterforge.config.names import AUTO
from drafterforge.evaluation.auto_replay import StreamCosts, compare, tokens_per_s
from drafterforge.evaluation.measurements import Measurement, RequestInfo
from drafterforge.runtime.rows import Cycle, Generation
from drafterforge.runtime.verify_costs import VerifyCosts

TABLE = VerifyCosts((1, 4, 8, 16), (0.1, 0.2, 0.3, 0.6))


def cycle(nodes: int, verify_s: float, accept_length: int = 2, **seconds: float) -> Cycle:
    return Cycle(depth=1, num_nodes=nodes, accept_length=accept_length, verify_s=verify_s, **seconds)


def test_measured_sizes_replace_the_table_and_larger_ones_are_scaled_to_them():
    cycles = [cycle(1, 0.010)] * 9 + [cycle(8, 0.035, host_s=0.005)] * 8 + [cycle(4, 9.0)]  # a single one says little
    costs = StreamCosts(TABLE, cycles).corrected_by([])
    assert (costs.nodes, costs.seconds.tolist()) == ((1, 8, 16), pytest.approx([0.010, 0.040, 0.080]))


def test_without_cycles_the_table_is_known():
    costs = StreamCosts(TABLE, []).corrected_by([])
    assert (costs.nodes, costs.seconds.tolist()) == (TABLE.nodes, TABLE.seconds.tolist())


def test_costs_are_corrected_to_the_total_seconds_of_some_cycles():
    cycles = [cycle(4, 0.300), cycle(8, 0.450)]
    costs = StreamCosts(TABLE, []).corrected_by(cycles)
    assert sum(costs.of(entry.num_nodes, 1) for entry in cycles) == pytest.approx(0.750)
    assert costs.of(1, 1) == pytest.approx(0.150)


def test_the_error_is_that_of_tokens_per_second_of_all_steps_of_the_cycles():
    live = [cycle(1, 0.1), cycle(4, 0.2, draft_s=0.05, select_s=0.02, schedule_s=0.01, host_s=0.02)]
    assert tokens_per_s(live) == pytest.approx(4 / 0.4)
    measurements = [
        Measurement(AUTO, [RequestInfo(number, "sql")], [Generation([], [0] * 5, cycles=cycles)])
        for number, cycles in enumerate((live, [cycle(1, 0.5)], [cycle(1, 0.1)]))
    ]
    replays = [[cycle(4, 0.2, accept_length=4)], [cycle(1, 0.4)], [cycle(1, 0.1)]]
    figures = compare(measurements, [Generation([], [], cycles=cycles) for cycles in replays])
    assert [prompt["error"] for prompt in figures["prompts"]] == [1.0, 0.25, 0.0]
    assert [prompt["request"] for prompt in figures["prompts"]] == [0, 1, 2]
    assert figures["median_error"] == 0.25 and figures["num_prompts"] == 3
    assert figures["live_tokens_per_s"] == 8.0 and figures["predicted_tokens_per_s"] == round(8 / 0.7, 3)
