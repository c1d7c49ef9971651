"""Replays of a suite: what every drafter would have done for the answers, under every selector and scheduler."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.progress import bar
from drafterforge.evaluation.contents import ALL
from drafterforge.evaluation.ledger import Asked, Entry
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.shelf import Shelf
from drafterforge.pipelines.contenders import STATIC, Contenders
from drafterforge.pipelines.suites import STREAMS, answered, tuning_requests
from drafterforge.replay.crossed import Crossing
from drafterforge.replay.curves import actions, pool_scaling, regret_curves, weights
from drafterforge.replay.plays import Story
from drafterforge.replay.selection import Contest, Cycles, tuned
from drafterforge.replay.story import tell
from drafterforge.runtime.batch import Cycle, Generation
from drafterforge.runtime.pool import Pool
from drafterforge.schedulers.base import Scheduler, StaticScheduler
from drafterforge.selectors import names as selector_names
from drafterforge.selectors import wants_divergence
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape

SCALED = ("hedgespec", "normalhedge", "ucbspec", "metasd_ucb")  # drawn against the pool's size
UNTAUGHT = ("static", "router", "oracle")  # selectors that need to be told a drafter, or a router


def replayed_selectors(cfg: EvaluateConfig) -> list[str]:
    """The selectors to replay."""
    return cfg.suite.selectors or [name for name in selector_names() if name not in UNTAUGHT]


def own_options(cfg: EvaluateConfig, pool: Pool) -> dict[str, Any]:
    """Options of the pool's own selector, its seed left out."""
    return {key: value for key, value in pool.options.items() if key != "seed"}


def schedulers_of(cfg: EvaluateConfig, contenders: Contenders) -> dict[str, Scheduler]:
    """What chooses the trees in a replay: one tree for each drafter, and every policy that is named."""
    found: dict[str, Scheduler] = {STATIC: StaticScheduler(contenders.shape)}
    for name in dict.fromkeys([*cfg.suite.schedulers, *([cfg.pool.scheduler] if cfg.pool.scheduler else [])]):
        found[name] = contenders.scheduler(name)
    return found


def told(
    cfg: EvaluateConfig,
    target: Target,
    pool: Pool,
    shape: TreeShape,
    requests: Sequence[Request],
    answers: Sequence[Generation],
    shelf: Shelf,
    name: str,
    schedulers: Mapping[str, Scheduler],
) -> dict[str, Contest]:
    """What every drafter would have done for each answer under each scheduler, and the router's advice."""
    chosen = [(cfg.pool.selector, cfg.pool.options), *((one, {}) for one in replayed_selectors(cfg))]
    divergences = any(wants_divergence(one, options) for one, options in chosen)
    most = cfg.suite.max_new_tokens
    crossing = Crossing(target, pool, shape, schedulers, most, divergences) if len(schedulers) > 1 else None

    def tell_one(answer: Generation) -> dict[str, Story]:
        if crossing is not None:
            return crossing.tell(answer)
        return {STATIC: tell(target, pool, shape, answer, divergences, most)}

    stories = []
    with bar("looking at every position", len(answers)) as progress:
        for place, answer in enumerate(answers):
            stories.append(shelf.stories(f"{name}-{place:05d}", lambda answer=answer: tell_one(answer)))
            progress.advance()
    prompts = [request.tokens for request in requests]
    contests = {one: Contest.of([story[one] for story in stories], prompts) for one in schedulers}
    if pool.router is None:
        return contests
    laws = advice(target, pool, contests[STATIC])
    return {one: replace(contest, advice=laws) for one, contest in contests.items()}


def tuning_of(
    cfg: EvaluateConfig, target: Target, pool: Pool, shape: TreeShape, requests: Sequence[Request], shelf: Shelf
) -> Contest | None:
    """The same of further requests, for constants that the papers leave open."""
    if not cfg.suite.tuning_prompts:
        return None
    others = tuning_requests(cfg, target, shelf, requests)
    found = answered(cfg, target, others, "answering the tuning prompts", shelf, "tuning")
    static = {STATIC: StaticScheduler(shape)}
    return told(cfg, target, pool, shape, others, found, shelf, "tuning-story", static)[STATIC]


def constants(cfg: EvaluateConfig, pool: Pool, tuning: Contest | None) -> dict[str, dict[str, Any]]:
    """Options of every selector that is replayed: the pool's own, or those that were best on other requests."""
    chosen, found = replayed_selectors(cfg), {}
    with bar("tuning selectors", len(chosen)) as progress:
        for name in chosen:
            options = own_options(cfg, pool) if name == cfg.pool.selector else {}
            if tuning is not None and not options:
                options = tuned(tuning, name, seed=cfg.seed)
            found[name] = options
            progress.advance(shown=name)
    return found


@dataclass(frozen=True)
class Play:
    """A selector with a scheduler, through all answers."""

    method: str
    selector: str
    scheduler: str
    options: dict[str, Any]
    cycles: list[Cycles]

    def told_of(self, contest: Contest) -> dict[str, Any]:
        """Keys that rows and entries share."""
        return {"selector": self.selector, "scheduler": self.scheduler, "drafters": contest.names}

    def entries(self, contest: Contest, requests: Sequence[Request], answers: Sequence[Generation]) -> Iterator[Entry]:
        """What the ledger keeps."""
        more = {"source": "replay", "options": json.dumps(self.options), **self.told_of(contest)}
        for place, cycles in zip(contest.places, self.cycles, strict=True):
            own = [
                Cycle(
                    depth=one.depth,
                    num_nodes=one.num_nodes,
                    accept_length=one.accept_length,
                    accepted=one.accept_length - 1,
                    drafter=contest.names[one.drafter],
                    top_k=one.top_k,
                )
                for one in cycles
            ]
            answer = Generation([], answers[place].tokens, cycles=own, stop_reason=answers[place].stop_reason)
            yield Entry(self.method, [Asked.of(place, requests[place])], [answer], group=place, **more)


def played(
    cfg: EvaluateConfig, pool: Pool, contests: Mapping[str, Contest], options: Mapping[str, dict[str, Any]]
) -> list[Play]:
    """Every drafter alone, the best in hindsight, and every selector, under every scheduler."""
    found = []
    with bar("replaying", len(contests) * len(options)) as progress:
        for scheduler, contest in contests.items():
            label = "" if scheduler == STATIC else f" with {scheduler}"
            alone = [(f"{name} alone", "static", {}, contest.alone(n)) for n, name in enumerate(contest.names)]
            plays = [*alone, ("best in hindsight", "oracle", {}, contest.hindsight())]
            if pool.router is not None and "router" not in options:
                plays.append(("router", "router", {}, contest.run(contest.maker("router"))))
            for name, own in options.items():
                made = contest.maker(name, **{"seed": cfg.seed} | own)
                plays.append((name, name, own, contest.run(made)))
                progress.advance(shown=name + label)
            found += [Play(name + label, selector, scheduler, own, cycles) for name, selector, own, cycles in plays]
    return found


def replay_rows(
    cfg: EvaluateConfig, contests: Mapping[str, Contest], plays: Sequence[Play], requests: Sequence[Request]
) -> list[dict[str, Any]]:
    """A row for every play, over all answers and by domain.  Regret is against the best drafter with one tree."""
    base = contests[STATIC]
    ours = next((play for play in plays if (play.selector, play.scheduler) == (cfg.pool.selector, STATIC)), None)
    rows = []
    for domain, places in parts_of(cfg, base, requests).items():
        for play in plays:
            part = replace(contests[play.scheduler], static=base.static).select(places)
            here = [play.cycles[place] for place in places]
            figures = {key: round(value, 4) for key, value in part.figures(here).items()}
            p = None if ours is None else part.paired_p([ours.cycles[place] for place in places], here)
            rows.append(
                {"method": play.method, **play.told_of(base), "domain": domain, "source": "replay"}
                | {"options": play.options, **figures, "p_selector_no_better": p}
            )
    return rows


def parts_of(cfg: EvaluateConfig, contest: Contest, requests: Sequence[Request]) -> dict[str, list[int]]:
    """Places of the contest's answers by the domain of their rows: all of them, and each domain but of a stream."""
    domains = [requests[place].domain for place in contest.places]
    names = sorted(set(domains))
    everything = list(range(len(domains)))
    if cfg.suite.name in STREAMS or len(names) == 1:
        return {"mixed" if len(names) > 1 else names[0]: everything}
    return {ALL: everything} | {name: [place for place in everything if domains[place] == name] for name in names}


def replay_curves(
    cfg: EvaluateConfig,
    pool: Pool,
    contests: Mapping[str, Contest],
    plays: Sequence[Play],
    options: Mapping[str, dict[str, Any]],
    requests: Sequence[Request],
) -> dict[str, Any]:
    """What the report draws of replays: drafters by domain, regret, weights, the pool's size and a policy's trees."""
    contest = contests[STATIC]
    static = {play.method: play.cycles for play in plays if play.scheduler == STATIC}
    chosen = {name: cycles for name, cycles in static.items() if not name.endswith(" alone")}
    policy = cfg.pool.scheduler or next((name for name in contests if name != STATIC), STATIC)
    own = [play for play in plays if play.scheduler == policy and play.selector == cfg.pool.selector]
    going_on = [place for place, at in enumerate(contest.places) if requests[at].before]
    shown = max(going_on or range(len(contest.places)), key=lambda place: contest.tokens[place])
    make = contest.maker(cfg.pool.selector, **pool.options)
    learners = {name: {"seed": cfg.seed} | own for name, own in options.items() if name in SCALED}
    return {
        "mat_by_domain": domain_matrix(contest, [requests[place].domain for place in contest.places]),
        "live": [],
        "regret_curves": regret_curves(contest, chosen),
        "weights": weights(contest, make, shown),
        "actions": actions(contests[policy], own[0].cycles) if own and policy != STATIC else [],
        "scaling": pool_scaling(contest, learners, orders=cfg.suite.pool_orders) if len(contest.names) > 1 else {},
    }


def advice(target: Target, pool: Pool, contest: Contest) -> list[np.ndarray]:
    """The router's law for every prompt."""
    laws = []
    for prompt in contest.prompts:
        tokens = torch.tensor([prompt], device=target.device)
        with torch.inference_mode():
            features = target.forward(tokens, torch.arange(len(prompt), device=target.device)[None], None)[1]
        laws.append(pool.router.advice(prompt, features[0], pool.names, target.tokenizer))
    return laws


def domain_matrix(contest: Contest, domains: Sequence[str]) -> dict[str, dict[str, float]]:
    """MAT of every drafter alone, by the domain of the answers."""
    tokens, static = contest.tokens, contest.static
    found: dict[str, dict[str, float]] = {}
    for domain in sorted(set(domains)):
        here = np.array([one == domain for one in domains])
        mats = tokens[here].sum() / static[here].sum(axis=0)
        found[domain] = {name: round(float(mat), 3) for name, mat in zip(contest.names, mats, strict=True)}
    return found
