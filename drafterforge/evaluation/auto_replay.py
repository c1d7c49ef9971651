"""Replays `auto` on the answers of the stream, and compares its tokens per second with the measured ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drafterforge.config.names import AUTO
from drafterforge.config.progress import bar
from drafterforge.evaluation.measurements import Measurement
from drafterforge.evaluation.method_factory import MethodFactory
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.timing import WARM_UP
from drafterforge.replay.auto_play import replay_answer
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.rows import TIMED, Cycle, Generation
from drafterforge.runtime.verify_costs import Correction, VerifyCosts

LEAST_CYCLES = 8  # of a number of nodes, to know its seconds


class StreamCosts:
    """Seconds of verification and commit by number of nodes, in the cycles of a stream."""

    def __init__(self, table: VerifyCosts, cycles: Iterable[Cycle]) -> None:
        """table: for larger numbers of nodes than cycles verified.  cycles: of prompts decoded one by one."""
        by_nodes: dict[int, list[float]] = {}
        for cycle in cycles:
            by_nodes.setdefault(cycle.num_nodes, []).append(passing_s(cycle))
        seconds = {count: float(np.median(values)) for count, values in by_nodes.items() if len(values) >= LEAST_CYCLES}
        in_table = dict(zip(table.nodes, table.seconds.tolist(), strict=True))
        if seconds:
            largest = max(seconds)
            scale = seconds[largest] / float(np.interp(largest, table.nodes, table.seconds))
            in_table = {count: scale * value for count, value in in_table.items() if count > largest}
        self.nodes, self.seconds = zip(*sorted((in_table | seconds).items()), strict=True)

    def corrected_by(self, cycles: Sequence[Cycle]) -> VerifyCosts:
        """Costs at the context of some cycles, and at the load of the machine meanwhile."""
        costs = VerifyCosts(self.nodes, self.seconds)
        if cycles:
            expected = sum(costs.of(cycle.num_nodes, 1) for cycle in cycles)
            costs.corrections[1] = Correction(sum(map(passing_s, cycles)) / expected)
        return costs


def replay_auto(
    factory: MethodFactory, requests: Sequence[Request], measurements: Sequence[Measurement]
) -> dict[str, Any] | None:
    """The curve `auto.replay`; None if there is no stream, or if `auto` decides nothing, as on a GPU.

    Verification takes the seconds that it took in the cycles of the other methods, on the same prompt.  At the same
    load it takes as much longer as it took in the cycles of `auto`, so that the load of the machine does not count.
    """
    stream = [measurement for measurement in measurements if not measurement.axis and not measurement.external]
    live = sorted((measurement for measurement in stream if measurement.method == AUTO), key=lambda m: m.group)
    live = [measurement for measurement in live if measurement.cycles]
    if not live or not decides_by_worth(engine := factory.method(AUTO).engine):
        return None
    references = [m for m in stream if m.method != AUTO and m.numerics == live[0].numerics]
    costs = StreamCosts(
        engine.drafter.worth.costs, [cycle for measurement in references for cycle in measurement.cycles]
    )
    by_references, at_load = [], []
    for measurement in live:
        cycles = [
            cycle for reference in references if reference.group == measurement.group for cycle in reference.cycles
        ]
        by_references.append(costs.corrected_by(cycles))
        at_load.append(costs.corrected_by(measurement.cycles))
    player = StreamPlayer(factory, requests, live)
    with bar("replaying auto", 2 * len(live)) as progress:
        figures = compare(live, player.play(by_references, progress.advance))
        return figures | {"same_load": compare(live, player.play(at_load, progress.advance))}


@dataclass(frozen=True)
class StreamPlayer:
    """Replays the answers of a stream in their order, with new engines of `auto`."""

    factory: MethodFactory
    requests: Sequence[Request]
    live: Sequence[Measurement]  # each of one answer with cycles

    def play(self, costs: Sequence[VerifyCosts], progress: Callable[[], None]) -> list[Generation]:
        """The replayed answers.  costs: of each answer.  progress: called after each."""
        answers, engine, session = [], None, None
        max_new_tokens = self.factory.cfg.suite.max_new_tokens
        for measurement, prompt_costs in zip(self.live, costs, strict=True):
            prompt, tokens = self.requests[measurement.requests[0].request].tokens, measurement.answers[0].tokens
            if engine is None or measurement.session != session:  # measuring, too, began with a new engine
                engine, session = self.factory.method(AUTO).engine, measurement.session
                replay_answer(engine, prompt, tokens[:WARM_UP], prompt_costs, min(WARM_UP, max_new_tokens))
            answers.append(replay_answer(engine, prompt, tokens, prompt_costs, max_new_tokens))
            progress()
        return answers


def compare(live: Sequence[Measurement], replayed: Sequence[Generation]) -> dict[str, Any]:
    """Tokens per second of all cycles, measured and predicted, the relative error by prompt, and its median size."""
    prompts = []
    for measurement, replay in zip(live, replayed, strict=True):
        measured, predicted = tokens_per_s(measurement.cycles), tokens_per_s(replay.cycles)
        prompts.append(
            {
                "request": measurement.requests[0].request,
                "live_tokens_per_s": round(measured, 3),
                "predicted_tokens_per_s": round(predicted, 3),
                "error": round(predicted / measured - 1, 4),
            }
        )
    return {
        "num_prompts": len(prompts),
        "live_tokens_per_s": round(tokens_per_s([cycle for m in live for cycle in m.cycles]), 3),
        "predicted_tokens_per_s": round(tokens_per_s([cycle for replay in replayed for cycle in replay.cycles]), 3),
        "median_error": round(float(np.median([abs(prompt["error"]) for prompt in prompts])), 4),
        "prompts": prompts,
    }


def tokens_per_s(cycles: Sequence[Cycle]) -> float:
    """Tokens of cycles over the seconds of all their steps."""
    seconds = sum(getattr(cycle, f"{step}_s") for cycle in cycles for step in TIMED)
    return sum(cycle.accept_length for cycle in cycles) / seconds


def passing_s(cycle: Cycle) -> float:
    """Seconds of verification and commit."""
    return cycle.verify_s + cycle.host_s


def decides_by_worth(engine: Engine) -> bool:
    """Whether the engine decides in every cycle whether and how much it drafts."""
    return isinstance(engine.drafter, Pool) and engine.drafter.worth is not None
