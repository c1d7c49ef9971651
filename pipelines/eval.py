"""A suite through the pool: the best drafter of each domain, what selectors make of it, how fast, how lossless."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drafterforge import __version__
from drafterforge.artifacts.locate import artifact_dir, find_artifact
from drafterforge.artifacts.manifest import Manifest
from drafterforge.artifacts.staging import drop_staging, open_staging
from drafterforge.compose import to_dict
from drafterforge.errors import ConfigError
from drafterforge.evaluation.contents import ALL
from drafterforge.evaluation.ledger import Asked, Entry
from drafterforge.evaluation.lossless import compare
from drafterforge.evaluation.requests import Request, spread
from drafterforge.evaluation.rows import timed_rows
from drafterforge.evaluation.selection import Contest, Cycles, tuned
from drafterforge.evaluation.shelf import Shelf
from drafterforge.evaluation.story import tell
from drafterforge.pipelines.console import bar
from drafterforge.pipelines.contenders import Contenders, check_methods
from drafterforge.pipelines.decode import open_drafter
from drafterforge.pipelines.eval_tables import show
from drafterforge.pipelines.pool import RETRIEVAL, build_pool, check_selector
from drafterforge.pipelines.reports import compare_saved, require_lossless, write_report
from drafterforge.pipelines.scaling import scaled, scaling_curves
from drafterforge.pipelines.suites import STREAMS, answered, limited, requests_of, tuning_requests
from drafterforge.pipelines.timing import settled, timed
from drafterforge.runtime.batch import Cycle, Generation
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.schema import EvaluateConfig
from drafterforge.selectors import check_options, wants_divergence
from drafterforge.selectors import names as selector_names
from drafterforge.target.device import describe_device
from drafterforge.target.load import Target, load_target
from drafterforge.tree.grow import TreeShape

Config = EvaluateConfig
UNTAUGHT = ("static", "router", "oracle")  # selectors that need to be told a drafter, or a router


def run(cfg: Config) -> Path:
    """Ask the target the suite's prompts, replay every selector on its answers, time the methods, and report."""
    if cfg.compare:
        return compare_saved(cfg.compare, cfg.runs_dir, cfg.target.name)
    cfg = limited(cfg)
    check_selectors(cfg)
    target = load_target(cfg.target)
    pool, shape = build_pool(cfg.pool, cfg.runtime, cfg.runs_dir, target, cfg.seed)
    check_methods(cfg.suite.methods, pool.names)
    parents = parents_of(cfg, target, pool)
    path = artifact_dir(cfg.runs_dir, target.name, "reports", cfg.name or cfg.suite.name)
    shelf = open_shelf(cfg, target, path, parents)
    requests = requests_of(cfg, target, shelf)
    answers = answered(cfg, target, requests, "answering", shelf, "answers")
    rows: list[dict[str, Any]] = []
    curves: dict[str, Any] = {}
    entries: list[Entry] = []
    best: dict[int, int] = {}
    if cfg.suite.replay:
        contest = told(cfg, target, pool, shape, requests, answers, shelf, "story")
        tuning = tuning_of(cfg, target, pool, shape, requests, shelf)
        rows, entries = replayed(cfg, pool, contest, requests, answers, tuning)
        best = {place: int(least) for place, least in zip(contest.places, contest.static.min(axis=1), strict=True)}
        curves["mat_by_domain"] = domain_matrix(contest, [requests[place].domain for place in contest.places])
        curves["live"] = []
        if cfg.suite.check_live:
            curves["live"] = decoded(cfg, target, pool, shape, requests, answers, contest)
    contenders = Contenders(cfg, target, pool, shape)
    chosen = timed_places(cfg, requests)
    live = timed(cfg, contenders.build(cfg.suite.methods), requests, chosen, shelf)
    if cfg.suite.name == "scaling":
        along, requests = scaled(cfg, contenders, requests, chosen, shelf)
        live += along
    curves["mismatches"] = settled(cfg, contenders, requests, live)
    curves["per_request"] = per_request(live)
    rows = timed_rows(live, curves["mismatches"], best, each=cfg.suite.name not in STREAMS) + rows
    curves["scaling"] = scaling_curves(rows)
    report, file = write_report(
        cfg.runs_dir,
        target,
        path.name,
        suite=cfg.suite.name,
        seed=cfg.seed,
        numerics=cfg.runtime.numerics,
        rows=rows,
        curves=curves,
        config=config_of(cfg),
        parents=parents,
        entries=live + entries,
    )
    drop_staging(path)
    show(report, cfg.pool.selector)
    print(f"wrote {file}")
    require_lossless(report, file)
    return file.parent


def check_selectors(cfg: Config) -> None:
    """Refuse names and options that do not exist before anything is loaded or decoded."""
    if cfg.suite.name == "papers" and not cfg.suite.questions:
        raise ConfigError("suite=papers needs question files; type suite.questions=FOLDER, with *.jsonl in it")
    check_selector(cfg.pool)
    check_methods(cfg.suite.methods)
    for name in cfg.suite.selectors:
        check_options(name, ())
    if "router" in cfg.suite.selectors and not cfg.pool.router:
        raise ConfigError("suite.selectors names router, and there is none; type pool.router=NAME")
    if "oracle" in cfg.suite.selectors:
        raise ConfigError("suite.selectors names oracle, which is the row `best in hindsight` anyway; leave it out")


def config_of(cfg: Config) -> dict[str, Any]:
    """What decides the figures."""
    parts = {key: to_dict(getattr(cfg, key)) for key in ("suite", "pool", "runtime")}
    return parts | {"seed": cfg.seed}


def parents_of(cfg: Config, target: Target, pool: Pool) -> list[Manifest]:
    """The drafters that are measured."""
    trained = [name for name in pool.names if name != RETRIEVAL]
    folders = [find_artifact(cfg.runs_dir, target.name, "drafters", name) for name in trained]
    return [open_drafter(folder, target) for folder in folders]


def open_shelf(cfg: Config, target: Target, path: Path, parents: Sequence[Manifest]) -> Shelf:
    """Where finished parts are kept; parts of other settings, drafters or machines are not taken over."""
    settings = config_of(cfg) | {
        "drafterforge": __version__,
        "target": target.fingerprint,
        "dtype": str(target.dtype),
        "device": describe_device(target.device),
        "drafters": [parent.as_parent() for parent in parents],
    }
    if cfg.overwrite:
        drop_staging(path)
    return Shelf(open_staging(path, settings))


def replayed_selectors(cfg: Config) -> list[str]:
    """The selectors to replay."""
    return cfg.suite.selectors or [name for name in selector_names() if name not in UNTAUGHT]


def own_options(cfg: Config, pool: Pool) -> dict[str, Any]:
    """Options of the pool's own selector, its seed left out."""
    return {key: value for key, value in pool.options.items() if key != "seed"}


def timed_places(cfg: Config, requests: Sequence[Request]) -> list[int]:
    """Which requests are timed: the first of a stream, as many of each domain otherwise."""
    if cfg.suite.name in STREAMS:
        return list(range(min(cfg.suite.timed_prompts, len(requests))))
    return spread(list(requests), cfg.suite.timed_prompts)


def told(
    cfg: Config,
    target: Target,
    pool: Pool,
    shape: TreeShape,
    requests: Sequence[Request],
    answers: Sequence[Generation],
    shelf: Shelf,
    name: str,
) -> Contest:
    """What every drafter would have done for each answer, and what the router makes of its prompt."""
    chosen = [(cfg.pool.selector, cfg.pool.options), *((one, {}) for one in replayed_selectors(cfg))]
    divergences = any(wants_divergence(one, options) for one, options in chosen)
    stories = []
    with bar("looking at every position", len(answers)) as progress:
        for place, answer in enumerate(answers):
            stories.append(
                shelf.story(f"{name}-{place:05d}", lambda answer=answer: tell(target, pool, shape, answer, divergences))
            )
            progress.advance()
    contest = Contest.of(stories, [request.tokens for request in requests])
    return contest if pool.router is None else replace(contest, advice=advice(target, pool, contest))


def tuning_of(
    cfg: Config, target: Target, pool: Pool, shape: TreeShape, requests: Sequence[Request], shelf: Shelf
) -> Contest | None:
    """The same of further requests, for constants that the papers leave open."""
    if not cfg.suite.tuning_prompts:
        return None
    others = tuning_requests(cfg, target, shelf, requests)
    found = answered(cfg, target, others, "answering the tuning prompts", shelf, "tuning")
    return told(cfg, target, pool, shape, others, found, shelf, "tuning-story")


def replayed(
    cfg: Config,
    pool: Pool,
    contest: Contest,
    requests: Sequence[Request],
    answers: Sequence[Generation],
    tuning: Contest | None,
) -> tuple[list[dict[str, Any]], list[Entry]]:
    """A row for every drafter alone, the best in hindsight, and every selector; and all that they are made of."""
    ours = contest.run(contest.maker(cfg.pool.selector, **pool.options))
    chosen = replayed_selectors(cfg)
    plays: list[tuple[str, str, dict, list[Cycles]]] = [
        (f"{name} alone", "static", {}, contest.alone(n)) for n, name in enumerate(contest.names)
    ]
    plays.append(("best in hindsight", "oracle", {}, contest.hindsight()))
    if pool.router is not None and "router" not in chosen:
        plays.append(("router", "router", {}, contest.run(contest.maker("router"))))
    with bar("replaying selectors", len(chosen)) as progress:
        for name in chosen:
            options = own_options(cfg, pool) if name == cfg.pool.selector else {}
            if tuning is not None and not options:
                options = tuned(tuning, name, seed=cfg.seed)
            plays.append((name, name, options, contest.run(contest.maker(name, **{"seed": cfg.seed} | options))))
            progress.advance(shown=name)
    entries: list[Entry] = []
    rows: list[dict[str, Any]] = []
    for domain, places in parts_of(cfg, contest, requests).items():
        part = contest.select(places)
        for method, selector, options, played in plays:
            here = [played[place] for place in places]
            told_of = {"selector": selector, "scheduler": "static", "drafters": contest.names}
            figures = {key: round(value, 4) for key, value in part.figures(here).items()}
            rows.append(
                {"method": method, **told_of, "domain": domain, "source": "replay", "options": options, **figures}
                | {"p_selector_no_better": part.paired_p([ours[place] for place in places], here)}
            )
    for method, selector, options, played in plays:
        told_of = {"selector": selector, "scheduler": "static", "drafters": contest.names}
        entries += replay_entries(contest, requests, answers, method, played, told_of, options)
    return rows, entries


def parts_of(cfg: Config, contest: Contest, requests: Sequence[Request]) -> dict[str, list[int]]:
    """Places of the contest's answers by the domain of their rows: all of them, and each domain but of a stream."""
    domains = [requests[place].domain for place in contest.places]
    names = sorted(set(domains))
    everything = list(range(len(domains)))
    if cfg.suite.name in STREAMS or len(names) == 1:
        return {"mixed" if len(names) > 1 else names[0]: everything}
    return {ALL: everything} | {name: [place for place in everything if domains[place] == name] for name in names}


def replay_entries(
    contest: Contest,
    requests: Sequence[Request],
    answers: Sequence[Generation],
    method: str,
    played: Sequence[Cycles],
    told_of: Mapping[str, Any],
    options: Mapping[str, Any],
) -> list[Entry]:
    """A replay as the ledger keeps it."""
    found = []
    for place, cycles in zip(contest.places, played, strict=True):
        own = [Cycle(0, 0, length, length - 1, drafter=contest.names[drafter]) for drafter, length in cycles]
        answer = Generation([], answers[place].tokens, cycles=own, stop_reason=answers[place].stop_reason)
        asked = [Asked.of(place, requests[place])]
        found.append(
            Entry(method, asked, [answer], source="replay", group=place, options=json.dumps(dict(options)), **told_of)
        )
    return found


def advice(target: Target, pool: Pool, contest: Contest) -> list[np.ndarray]:
    """The router's law for every prompt."""
    laws = []
    for prompt in contest.prompts:
        tokens = torch.tensor([prompt], device=target.device)
        with torch.inference_mode():
            features = target.forward(tokens, torch.arange(len(prompt), device=target.device)[None], None)[1]
        laws.append(pool.router.advice(prompt, features[0], pool.names, target.tokenizer))
    return laws


def decoded(
    cfg: Config,
    target: Target,
    pool: Pool,
    shape: TreeShape,
    requests: Sequence[Request],
    answers: Sequence[Generation],
    contest: Contest,
) -> list[dict[str, Any]]:
    """Every drafter alone and the pool's selector, live, in batches: the replay's cycles and the target's text."""
    found = []
    prompts = [request.tokens for request in requests]
    methods = []
    for name, drafter in pool.drafters.items():
        one = Pool({name: drafter}, "static", drafter=name, shapes=own(pool, name))
        methods.append((name, Engine(target, one, shape)))
    one_tree = Pool(pool.drafters, cfg.pool.selector, shapes=pool.shapes, router=pool.router, **pool.options)
    methods.append((cfg.pool.selector, Engine(target, one_tree, shape)))
    replays = [contest.alone(n) for n in range(len(contest.names))]
    replays.append(contest.run(contest.maker(cfg.pool.selector, **pool.options)))
    with bar("decoding live", len(methods) * len(prompts)) as progress:
        for (name, engine), replay in zip(methods, replays, strict=True):
            engine.max_batch = cfg.suite.batch_size
            done = engine.generate(prompts, cfg.suite.max_new_tokens)
            progress.advance(len(prompts), name)
            live = [len(one.cycles) for one in done if one.cycles]
            found.append(
                {
                    "method": name,
                    "num_cycles": sum(live),
                    "replayed_cycles": sum(map(len, replay)),
                    "requests_with_other_cycles": sum(a != len(b) for a, b in zip(live, replay, strict=True)),
                    "other_text": [one.as_dict() for one in compare(name, target, done, answers)],
                }
            )
    return found


def own(pool: Pool, name: str) -> dict[str, TreeShape]:
    """The drafter's own shape, if it has one."""
    return {name: pool.shapes[name]} if name in pool.shapes else {}


def domain_matrix(contest: Contest, domains: Sequence[str]) -> dict[str, dict[str, float]]:
    """MAT of every drafter alone, by the domain of the answers."""
    tokens, static = contest.tokens, contest.static
    found: dict[str, dict[str, float]] = {}
    for domain in sorted(set(domains)):
        here = np.array([one == domain for one in domains])
        mats = tokens[here].sum() / static[here].sum(axis=0)
        found[domain] = {name: round(float(mat), 3) for name, mat in zip(contest.names, mats, strict=True)}
    return found


def per_request(entries: Sequence[Entry]) -> dict[str, list[list[float]]]:
    """Tokens, cycles and seconds of every timed request, by method."""
    found: dict[str, list[list[float]]] = {}
    for entry in sorted((one for one in entries if not one.axis), key=lambda one: one.group):
        found.setdefault(entry.method, []).append([entry.num_tokens, len(entry.cycles), round(entry.seconds, 6)])
    return found
