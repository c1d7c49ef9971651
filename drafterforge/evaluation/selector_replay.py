"""Replays selectors and schedulers on the answers of a suite: exact cycles, MAT and regret, without timing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.evaluation import ALL
from drafterforge.config.progress import bar
from drafterforge.evaluation.measurements import Measurement, RequestInfo
from drafterforge.evaluation.method_factory import STATIC, MethodFactory
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.suites import STREAMS, Suite
from drafterforge.replay.answer_recorder import AnswerRecorder
from drafterforge.replay.curves import (
    actions,
    pool_scaling,
    pool_sizes,
    regret_by_order,
    regret_curves,
    reward_signals,
    weights,
)
from drafterforge.replay.selector_play import Cycles, RecordedAnswers, accept_rate, tune_options
from drafterforge.runtime.pool import Pool
from drafterforge.runtime.rows import Cycle, Generation
from drafterforge.schedulers.base import Scheduler, StaticScheduler
from drafterforge.selectors import names as selector_names
from drafterforge.selectors import reads_branches
from drafterforge.selectors.naming import TUNED, result_name
from drafterforge.targets.load import Target

SCALED = (  # selectors of the figure against pool size
    "hedgespec",
    "hedgespec-paper",
    "normalhedge",
    "ucbspec",
    "exp3spec",
    "metasd_ucb",
)
NOT_REPLAYED = ("static", "router", "oracle")  # selectors that need a drafter's name or a router


@dataclass(frozen=True)
class ReplayedMethod:
    """A selector with a scheduler, replayed on all answers."""

    method: str
    selector: str  # name of its results, see `result_name`
    scheduler: str
    options: dict[str, Any]
    cycles: list[Cycles]

    def keys(self, recorded: RecordedAnswers) -> dict[str, Any]:
        """Keys that rows and measurements share."""
        return {"selector": self.selector, "scheduler": self.scheduler, "drafters": recorded.names}

    def measurements(
        self, recorded: RecordedAnswers, requests: Sequence[Request], answers: Sequence[Generation]
    ) -> Iterator[Measurement]:
        """Its lines of `cycles.parquet`."""
        keys = {"source": "replay", "options": json.dumps(self.options), **self.keys(recorded)}
        for index, cycles in zip(recorded.indices, self.cycles, strict=True):
            played = [
                Cycle(
                    depth=cycle.depth,
                    num_nodes=cycle.num_nodes,
                    accept_length=cycle.accept_length,
                    accepted=cycle.accept_length - 1,
                    drafter=recorded.names[cycle.drafter],
                    top_k=cycle.top_k,
                )
                for cycle in cycles
            ]
            answer = Generation([], answers[index].tokens, cycles=played, stop_reason=answers[index].stop_reason)
            yield Measurement(self.method, [RequestInfo.of(index, requests[index])], [answer], group=index, **keys)


@dataclass(frozen=True)
class SelectorReplay:
    """All replays on the answers of a suite."""

    suite: Suite
    factory: MethodFactory
    requests: Sequence[Request]
    answers: Sequence[Generation]

    @property
    def cfg(self) -> EvaluateConfig:
        return self.suite.cfg

    @property
    def pool(self) -> Pool:
        return self.factory.pool

    @cached_property
    def selectors(self) -> list[str]:
        return self.cfg.suite.selectors or [name for name in selector_names() if name not in NOT_REPLAYED]

    @cached_property
    def by_scheduler(self) -> dict[str, RecordedAnswers]:
        """Counterfactuals of each answer under each scheduler, with the router's advice."""
        configured = [self.cfg.pool.scheduler] if self.cfg.pool.scheduler else []
        schedulers: dict[str, Scheduler] = {STATIC: StaticScheduler(self.factory.shape)}
        for name in dict.fromkeys([*self.cfg.suite.schedulers, *configured]):
            schedulers[name] = self.factory.scheduler(name)
        return self._recorded(self.requests, self.answers, schedulers, "counterfactuals")

    @property
    def static(self) -> RecordedAnswers:
        """Recorded answers without a scheduler."""
        return self.by_scheduler[STATIC]

    @property
    def pool_options(self) -> dict[str, Any]:
        """Configured options of the pool's selector."""
        return {key: value for key, value in self.pool.options.items() if key != "seed"}

    @property
    def pool_result(self) -> str:
        """Name of the results of the pool's selector."""
        return result_name(self.cfg.pool.selector_name, self.pool_options)

    @cached_property
    def options(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Selector and options by the name of their results.

        Every selector has its defaults, or the configured options if it is the pool's.  Where there are other requests
        to tune on, selectors with constants to tune come a second time, tuned.
        """
        options = {}
        for name in self.selectors:
            configured = self.pool_options if name == self.cfg.pool.selector_name else {}
            options[result_name(name, configured)] = name, configured
        tuning = self._tuning_answers()
        if tuning is None:
            return options
        with bar("tuning selectors", len(self.selectors)) as progress:
            for name in self.selectors:
                tuned = tune_options(tuning, name, seed=self.cfg.seed)
                if tuned:
                    options.setdefault(name + TUNED, (name, tuned))
                progress.advance(status=name)
        return options

    @cached_property
    def methods(self) -> list[ReplayedMethod]:
        """Each drafter alone, the best in hindsight, and each selector, under each scheduler."""
        methods: list[ReplayedMethod] = []
        options, by_scheduler = self.options, self.by_scheduler
        with bar("replaying", len(by_scheduler) * len(options)) as progress:
            for scheduler, recorded in by_scheduler.items():
                label = "" if scheduler == STATIC else f" with {scheduler}"
                replays = [(f"{name} alone", "static", {}, recorded.alone(n)) for n, name in enumerate(recorded.names)]
                replays.append(("best in hindsight", "oracle", {}, recorded.hindsight()))
                if self.pool.router is not None and "router" not in options:
                    replays.append(("router", "router", {}, recorded.run(recorded.maker("router"))))
                for result, (name, changed) in options.items():
                    make = recorded.maker(name, **{"seed": self.cfg.seed} | changed)
                    replays.append((result, result, changed, recorded.run(make)))
                    progress.advance(status=result + label)
                methods += [
                    ReplayedMethod(name + label, selector, scheduler, changed, cycles)
                    for name, selector, changed, cycles in replays
                ]
        return methods

    def measurements(self) -> list[Measurement]:
        """All replayed lines of `cycles.parquet`."""
        return [
            replace(measurement, temperature=self.cfg.suite.temperature)
            for method in self.methods
            for measurement in method.measurements(self.by_scheduler[method.scheduler], self.requests, self.answers)
        ]

    def best_cycles(self) -> dict[int, int]:
        """Cycles of each request with its best static drafter, by index of the request."""
        recorded = self.static
        return {index: int(least) for index, least in zip(recorded.indices, recorded.static.min(axis=1), strict=True)}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each method, over all answers and by domain.  Regret is against the best drafter with one tree."""
        reference = next((m for m in self.methods if (m.selector, m.scheduler) == (self.pool_result, STATIC)), None)
        rows = []
        for domain, indices in self._indices_by_domain().items():
            for method in self.methods:
                part = replace(self.by_scheduler[method.scheduler], static=self.static.static).select(indices)
                cycles = [method.cycles[index] for index in indices]
                figures = {key: round(value, 4) for key, value in part.figures(cycles).items()}
                rate = accept_rate(cycles)
                figures["accept_rate"] = None if rate is None else round(rate, 4)
                p = None if reference is None else part.paired_p([reference.cycles[index] for index in indices], cycles)
                rows.append(
                    {"method": method.method, **method.keys(self.static), "domain": domain, "source": "replay"}
                    | {"temperature": self.cfg.suite.temperature}
                    | {"options": method.options, **figures, "p_selector_no_better": p}
                )
        return rows

    def curves(self) -> dict[str, Any]:
        """Curves of the report: drafters by domain, regret, weights, rewards, pool scaling and trees of a policy."""
        recorded = self.static
        cycles = {method.method: method.cycles for method in self.methods if method.scheduler == STATIC}
        policy = self.cfg.pool.scheduler or next((name for name in self.by_scheduler if name != STATIC), STATIC)
        with_policy = [m for m in self.methods if (m.scheduler, m.selector) == (policy, self.pool_result)]
        scheduled = bool(with_policy) and policy != STATIC
        conversations = [number for number, index in enumerate(recorded.indices) if self.requests[index].before]
        longest = max(conversations or range(len(recorded.indices)), key=lambda number: recorded.tokens[number])
        learners = {name: {"seed": self.cfg.seed} | self.options[name][1] for name in SCALED if name in self.options}
        several = len(recorded.names) > 1
        return {
            "mat_by_domain": mat_by_domain(recorded, [self.requests[index].domain for index in recorded.indices]),
            "live": [],
            "regret_curves": regret_curves(recorded, {n: c for n, c in cycles.items() if not n.endswith(" alone")}),
            "weights": weights(recorded, self._pool_selector(), longest),
            "actions": actions(self.by_scheduler[policy], with_policy[0].cycles) if scheduled else [],
            "signal_strength": [
                {"domain": domain, **row}
                for domain, indices in self._indices_by_domain().items()
                for row in reward_signals(recorded.select(indices))
            ],
            "regret_by_order": self._regret_by_order(learners) if several else {},
            "scaling": self._pool_scaling(learners) if several else {},
        }

    def _regret_by_order(self, learners: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        with bar("replaying orders", self.cfg.suite.pool_orders) as progress:
            return regret_by_order(self.static, learners, self.cfg.suite.pool_orders, progress=progress.advance)

    def _pool_scaling(self, learners: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        orders = self.cfg.suite.pool_orders
        with bar("replaying pools", len(pool_sizes(len(self.static.names))) * orders) as progress:
            return pool_scaling(self.static, learners, orders, progress=progress.advance)

    def pool_cycles(self) -> dict[str, list[Cycles]]:
        """Replayed cycles of each drafter alone and of the pool's selector, without a scheduler."""
        recorded = self.static
        alone = {name: recorded.alone(n) for n, name in enumerate(recorded.names)}
        return alone | {self.cfg.pool.selector_name: recorded.run(self._pool_selector())}

    def _pool_selector(self) -> Callable[[], Any]:
        return self.static.maker(self.cfg.pool.selector_name, **self.pool.options)

    def _indices_by_domain(self) -> dict[str, list[int]]:
        """Indices of all recorded answers, and of those of each domain; a stream has no domains."""
        domains = [self.requests[index].domain for index in self.static.indices]
        names, indices = sorted(set(domains)), list(range(len(domains)))
        if self.cfg.suite.name in STREAMS or len(names) == 1:
            return {"mixed" if len(names) > 1 else names[0]: indices}
        return {ALL: indices} | {name: [i for i in indices if domains[i] == name] for name in names}

    def _tuning_answers(self) -> RecordedAnswers | None:
        """Recorded answers to other requests, on which constants that the papers leave open are tuned."""
        if not self.cfg.suite.tuning_prompts:
            return None
        requests = self.suite.tuning_requests(self.requests)
        answers = self.suite.answers(requests, "answering the tuning prompts", "tuning")
        static = {STATIC: StaticScheduler(self.factory.shape)}
        return self._recorded(requests, answers, static, "tuning-counterfactuals")[STATIC]

    def _recorded(
        self,
        requests: Sequence[Request],
        answers: Sequence[Generation],
        schedulers: Mapping[str, Scheduler],
        part: str,
    ) -> dict[str, RecordedAnswers]:
        """Recorded answers by scheduler.  part: name of the counterfactuals in the resume cache."""
        selectors = [(self.cfg.pool.selector_name, self.cfg.pool.options), *((name, {}) for name in self.selectors)]
        branches = any(reads_branches(name, options) for name, options in selectors)
        target, pool, shape = self.factory.target, self.pool, self.factory.shape
        max_new_tokens = self.cfg.suite.max_new_tokens
        recorder, counterfactuals = AnswerRecorder(target, pool, shape, schedulers, max_new_tokens, branches), []
        with bar("recording every position", len(answers)) as progress:
            for index, answer in enumerate(answers):
                record = partial(recorder.record, answer)
                counterfactuals.append(self.suite.cache.counterfactuals(f"{part}-{index:05d}", record))
                progress.advance()
        prompts = [request.tokens for request in requests]
        by_scheduler = {
            name: RecordedAnswers.of([by_name[name] for by_name in counterfactuals], prompts) for name in schedulers
        }
        if pool.router is None:
            return by_scheduler
        advice = router_advice(target, pool, by_scheduler[STATIC])
        return {name: replace(recorded, advice=advice) for name, recorded in by_scheduler.items()}


def router_advice(target: Target, pool: Pool, recorded: RecordedAnswers) -> list[np.ndarray]:
    """The router's distribution over the drafters for each prompt."""
    distributions = []
    for prompt in recorded.prompts:
        tokens = torch.tensor([prompt], device=target.device)
        with torch.inference_mode():
            features = target.forward(tokens, torch.arange(len(prompt), device=target.device)[None], None)[1]
        distributions.append(pool.router.advice(prompt, features[0], pool.names, target.tokenizer))
    return distributions


def mat_by_domain(recorded: RecordedAnswers, domains: Sequence[str]) -> dict[str, dict[str, float]]:
    """MAT of each drafter alone, by domain of the answers."""
    table: dict[str, dict[str, float]] = {}
    for domain in sorted(set(domains)):
        is_domain = np.array([name == domain for name in domains])
        mats = recorded.tokens[is_domain].sum() / recorded.static[is_domain].sum(axis=0)
        table[domain] = {name: round(float(mat), 3) for name, mat in zip(recorded.names, mats, strict=True)}
    return table
