"""Replays selectors and schedulers on the answers of a suite: cycles, MAT and regret, exactly and without a clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.progress import bar
from drafterforge.evaluation.measurements import Measurement, RequestInfo
from drafterforge.evaluation.method_factory import STATIC, MethodFactory
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.rows import ALL
from drafterforge.evaluation.suites import STREAMS, Suite
from drafterforge.replay.answer_recorder import AnswerRecorder
from drafterforge.replay.curves import actions, pool_scaling, regret_curves, weights
from drafterforge.replay.selector_play import Cycles, RecordedAnswers, tuned
from drafterforge.runtime.batch import Cycle, Generation
from drafterforge.runtime.pool import Pool
from drafterforge.schedulers.base import Scheduler, StaticScheduler
from drafterforge.selectors import names as selector_names
from drafterforge.selectors import wants_divergence
from drafterforge.targets.load import Target

SCALED = ("hedgespec", "normalhedge", "ucbspec", "metasd_ucb")  # drawn against the pool's size
NOT_REPLAYED = ("static", "router", "oracle")  # selectors that need a drafter's name, or a router


@dataclass(frozen=True)
class ReplayedMethod:
    """A selector with a scheduler, through all answers."""

    method: str
    selector: str
    scheduler: str
    options: dict[str, Any]
    cycles: list[Cycles]

    def keys(self, recorded: RecordedAnswers) -> dict[str, Any]:
        """What rows and measurements share."""
        return {"selector": self.selector, "scheduler": self.scheduler, "drafters": recorded.names}

    def measurements(
        self, recorded: RecordedAnswers, requests: Sequence[Request], answers: Sequence[Generation]
    ) -> Iterator[Measurement]:
        """What `cycles.parquet` keeps of it."""
        keys = {"source": "replay", "options": json.dumps(self.options), **self.keys(recorded)}
        for index, cycles in zip(recorded.indices, self.cycles, strict=True):
            taken = [
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
            answer = Generation([], answers[index].tokens, cycles=taken, stop_reason=answers[index].stop_reason)
            yield Measurement(self.method, [RequestInfo.of(index, requests[index])], [answer], group=index, **keys)


@dataclass(frozen=True)
class SelectorReplay:
    """Everything that is replayed on a suite's answers."""

    suite: Suite
    factory: MethodFactory
    requests: Sequence[Request]
    answers: Sequence[Generation]

    @property
    def cfg(self) -> EvaluateConfig:
        """The configuration of `eval`."""
        return self.suite.cfg

    @property
    def pool(self) -> Pool:
        """The drafters that are replayed."""
        return self.factory.pool

    @cached_property
    def selectors(self) -> list[str]:
        """The selectors that are replayed."""
        return self.cfg.suite.selectors or [name for name in selector_names() if name not in NOT_REPLAYED]

    @cached_property
    def by_scheduler(self) -> dict[str, RecordedAnswers]:
        """What every drafter would have done for each answer under each scheduler, with the router's advice."""
        configured = [self.cfg.pool.scheduler] if self.cfg.pool.scheduler else []
        schedulers: dict[str, Scheduler] = {STATIC: StaticScheduler(self.factory.shape)}
        for name in dict.fromkeys([*self.cfg.suite.schedulers, *configured]):
            schedulers[name] = self.factory.scheduler(name)
        return self._recorded(self.requests, self.answers, schedulers, "counterfactuals")

    @property
    def static(self) -> RecordedAnswers:
        """The answers with one tree for every drafter."""
        return self.by_scheduler[STATIC]

    @cached_property
    def options(self) -> dict[str, dict[str, Any]]:
        """Options of every selector: the pool's for its selector, else those that were best on other requests."""
        pool_options = {key: value for key, value in self.pool.options.items() if key != "seed"}
        tuning, options = self._tuning_answers(), {}
        with bar("tuning selectors", len(self.selectors)) as progress:
            for name in self.selectors:
                options[name] = pool_options if name == self.cfg.pool.selector else {}
                if tuning is not None and not options[name]:
                    options[name] = tuned(tuning, name, seed=self.cfg.seed)
                progress.advance(shown=name)
        return options

    @cached_property
    def methods(self) -> list[ReplayedMethod]:
        """Every drafter alone, the best in hindsight, and every selector, under every scheduler."""
        methods: list[ReplayedMethod] = []
        options, by_scheduler = self.options, self.by_scheduler
        with bar("replaying", len(by_scheduler) * len(options)) as progress:
            for scheduler, recorded in by_scheduler.items():
                label = "" if scheduler == STATIC else f" with {scheduler}"
                replays = [(f"{name} alone", "static", {}, recorded.alone(n)) for n, name in enumerate(recorded.names)]
                replays.append(("best in hindsight", "oracle", {}, recorded.hindsight()))
                if self.pool.router is not None and "router" not in options:
                    replays.append(("router", "router", {}, recorded.run(recorded.maker("router"))))
                for name, chosen in options.items():
                    make = recorded.maker(name, **{"seed": self.cfg.seed} | chosen)
                    replays.append((name, name, chosen, recorded.run(make)))
                    progress.advance(shown=name + label)
                methods += [
                    ReplayedMethod(name + label, selector, scheduler, chosen, cycles)
                    for name, selector, chosen, cycles in replays
                ]
        return methods

    def measurements(self) -> list[Measurement]:
        """What `cycles.parquet` keeps of all of it."""
        return [
            measurement
            for method in self.methods
            for measurement in method.measurements(self.by_scheduler[method.scheduler], self.requests, self.answers)
        ]

    def best_cycles(self) -> dict[int, int]:
        """Cycles of each request with its best drafter, by index of the request."""
        recorded = self.static
        return {index: int(least) for index, least in zip(recorded.indices, recorded.static.min(axis=1), strict=True)}

    def rows(self) -> list[dict[str, Any]]:
        """A row for every method, over all answers and by domain.  Regret is against the best drafter with one tree."""
        pool_selector = (self.cfg.pool.selector, STATIC)
        ours = next((one for one in self.methods if (one.selector, one.scheduler) == pool_selector), None)
        rows = []
        for domain, places in self._places_by_domain().items():
            for method in self.methods:
                part = replace(self.by_scheduler[method.scheduler], static=self.static.static).select(places)
                cycles = [method.cycles[place] for place in places]
                figures = {key: round(value, 4) for key, value in part.figures(cycles).items()}
                p = None if ours is None else part.paired_p([ours.cycles[place] for place in places], cycles)
                rows.append(
                    {"method": method.method, **method.keys(self.static), "domain": domain, "source": "replay"}
                    | {"options": method.options, **figures, "p_selector_no_better": p}
                )
        return rows

    def curves(self) -> dict[str, Any]:
        """What the report draws: drafters by domain, regret, weights, the pool's size and a policy's trees."""
        recorded = self.static
        cycles = {one.method: one.cycles for one in self.methods if one.scheduler == STATIC}
        policy = self.cfg.pool.scheduler or next((name for name in self.by_scheduler if name != STATIC), STATIC)
        with_policy = [one for one in self.methods if (one.scheduler, one.selector) == (policy, self.cfg.pool.selector)]
        scheduled = bool(with_policy) and policy != STATIC
        conversations = [place for place, index in enumerate(recorded.indices) if self.requests[index].before]
        longest = max(conversations or range(len(recorded.indices)), key=lambda place: recorded.tokens[place])
        learners = {name: {"seed": self.cfg.seed} | options for name, options in self.options.items() if name in SCALED}
        several = len(recorded.names) > 1
        return {
            "mat_by_domain": mat_by_domain(recorded, [self.requests[index].domain for index in recorded.indices]),
            "live": [],
            "regret_curves": regret_curves(recorded, {n: c for n, c in cycles.items() if not n.endswith(" alone")}),
            "weights": weights(recorded, self._pool_selector(), longest),
            "actions": actions(self.by_scheduler[policy], with_policy[0].cycles) if scheduled else [],
            "scaling": pool_scaling(recorded, learners, orders=self.cfg.suite.pool_orders) if several else {},
        }

    def pool_cycles(self) -> dict[str, list[Cycles]]:
        """Replayed cycles of every drafter alone and of the pool's selector, each drafter with one tree."""
        recorded = self.static
        alone = {name: recorded.alone(n) for n, name in enumerate(recorded.names)}
        return alone | {self.cfg.pool.selector: recorded.run(self._pool_selector())}

    def _pool_selector(self) -> Callable[[], Any]:
        return self.static.maker(self.cfg.pool.selector, **self.pool.options)

    def _places_by_domain(self) -> dict[str, list[int]]:
        """Places of the recorded answers: all of them, and of each domain, except those of a stream."""
        domains = [self.requests[index].domain for index in self.static.indices]
        names, everything = sorted(set(domains)), list(range(len(domains)))
        if self.cfg.suite.name in STREAMS or len(names) == 1:
            return {"mixed" if len(names) > 1 else names[0]: everything}
        return {ALL: everything} | {name: [p for p in everything if domains[p] == name] for name in names}

    def _tuning_answers(self) -> RecordedAnswers | None:
        """Recorded answers to further requests, on which constants that the papers leave open are tuned."""
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
        """part: name of the counterfactuals in the resume cache."""
        used = [(self.cfg.pool.selector, self.cfg.pool.options), *((name, {}) for name in self.selectors)]
        divergences = any(wants_divergence(name, options) for name, options in used)
        target, pool, shape = self.factory.target, self.pool, self.factory.shape
        most = self.cfg.suite.max_new_tokens
        recorder, counterfactuals = AnswerRecorder(target, pool, shape, schedulers, most, divergences), []
        with bar("looking at every position", len(answers)) as progress:
            for index, answer in enumerate(answers):
                record = partial(recorder.record, answer)
                counterfactuals.append(self.suite.cache.counterfactuals(f"{part}-{index:05d}", record))
                progress.advance()
        prompts = [request.tokens for request in requests]
        by_scheduler = {
            name: RecordedAnswers.of([each[name] for each in counterfactuals], prompts) for name in schedulers
        }
        if pool.router is None:
            return by_scheduler
        advice = router_advice(target, pool, by_scheduler[STATIC])
        return {name: replace(recorded, advice=advice) for name, recorded in by_scheduler.items()}


def router_advice(target: Target, pool: Pool, recorded: RecordedAnswers) -> list[np.ndarray]:
    """The router's distribution over the drafters for every prompt."""
    distributions = []
    for prompt in recorded.prompts:
        tokens = torch.tensor([prompt], device=target.device)
        with torch.inference_mode():
            features = target.forward(tokens, torch.arange(len(prompt), device=target.device)[None], None)[1]
        distributions.append(pool.router.advice(prompt, features[0], pool.names, target.tokenizer))
    return distributions


def mat_by_domain(recorded: RecordedAnswers, domains: Sequence[str]) -> dict[str, dict[str, float]]:
    """MAT of every drafter alone, by the domain of the answers."""
    table: dict[str, dict[str, float]] = {}
    for domain in sorted(set(domains)):
        here = np.array([name == domain for name in domains])
        mats = recorded.tokens[here].sum() / recorded.static[here].sum(axis=0)
        table[domain] = {name: round(float(mat), 3) for name, mat in zip(recorded.names, mats, strict=True)}
    return table
