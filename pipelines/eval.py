"""A suite through the pool: the best drafter of each domain, what selectors make of it, how fast, how lossless."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drafterforge import __version__
from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.locate import artifact_dir, find_artifact
from drafterforge.artifacts.manifest import Manifest
from drafterforge.artifacts.staging import drop_staging, open_staging
from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.names import domain_of, parts_of
from drafterforge.config.progress import bar, say
from drafterforge.errors import ConfigError
from drafterforge.evaluation.ledger import Entry
from drafterforge.evaluation.lossless import compare
from drafterforge.evaluation.requests import Request, spread
from drafterforge.evaluation.rivals import require_openvino
from drafterforge.evaluation.rows import timed_rows
from drafterforge.evaluation.shelf import Shelf
from drafterforge.pipelines.contenders import EXPERT, OPENVINO, STATIC, Contenders, check_methods
from drafterforge.pipelines.decode import open_drafter
from drafterforge.pipelines.eval_tables import show
from drafterforge.pipelines.pool import RETRIEVAL, build_pool, check_selector
from drafterforge.pipelines.replays import constants, played, replay_curves, replay_rows, schedulers_of, told, tuning_of
from drafterforge.pipelines.reports import compare_saved, require_lossless, write_report
from drafterforge.pipelines.scaling import scaled, scaling_curves
from drafterforge.pipelines.suites import STREAMS, answered, limited, requests_of
from drafterforge.pipelines.timing import settled, timed
from drafterforge.replay.selection import Contest
from drafterforge.runtime.batch import Generation
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.selectors import check_options
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target, load_target
from drafterforge.tree.grow import TreeShape

Config = EvaluateConfig


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
    contenders = Contenders(cfg, target, pool, shape)
    if cfg.suite.replay:
        schedulers = schedulers_of(cfg, contenders)
        contests = told(cfg, target, pool, shape, requests, answers, shelf, "story", schedulers)
        contest = contests[STATIC]
        options = constants(cfg, pool, tuning_of(cfg, target, pool, shape, requests, shelf))
        plays = played(cfg, pool, contests, options)
        rows = replay_rows(cfg, contests, plays, requests)
        entries = [entry for play in plays for entry in play.entries(contests[play.scheduler], requests, answers)]
        best = {place: int(least) for place, least in zip(contest.places, contest.static.min(axis=1), strict=True)}
        curves |= replay_curves(cfg, pool, contests, plays, options, requests)
        if cfg.suite.check_live:
            curves["live"] = decoded(cfg, target, pool, shape, requests, answers, contest)
    chosen = timed_places(cfg, requests)
    tell_lacking(cfg, pool, [requests[place] for place in chosen])
    live = timed(cfg, contenders.build(cfg.suite.methods if chosen else []), requests, chosen, shelf)
    if cfg.suite.name == "scaling":
        along, requests = scaled(cfg, contenders, requests, chosen, shelf)
        live += along
    curves["mismatches"] = settled(cfg, contenders, requests, live)
    curves["per_request"] = per_request(live)
    rows = timed_rows(live, curves["mismatches"], best, each=cfg.suite.name not in STREAMS) + rows
    curves["scaling"] = scaling_curves(rows, curves.get("scaling", {}))
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
    if OPENVINO in cfg.suite.methods:
        require_openvino(cfg.suite.openvino)
    for name in cfg.suite.selectors:
        check_options(name, ())
    if "router" in cfg.suite.selectors and not cfg.pool.router:
        raise ConfigError("suite.selectors names router, and there is none; type pool.router=NAME")
    if "oracle" in cfg.suite.selectors:
        raise ConfigError("suite.selectors names oracle, which is the row `best in hindsight` anyway; leave it out")


def config_of(cfg: Config) -> dict[str, Any]:
    """What decides the figures."""
    parts = {key: to_dict(getattr(cfg, key)) for key in ("suite", "pool", "runtime")}
    del parts["suite"]["openvino"]  # where it lies says nothing
    return parts | {"seed": cfg.seed}


def parents_of(cfg: Config, target: Target, pool: Pool) -> list[Manifest]:
    """The drafters that are measured."""
    trained = [name for name in parts_of(pool.names) if name != RETRIEVAL]
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
        "policies": [policy.as_parent() for policy in policies_of(cfg, target)],
    }
    if cfg.overwrite:
        drop_staging(path)
    return Shelf(open_staging(path, settings))


def policies_of(cfg: Config, target: Target) -> list[Manifest]:
    """The policies and the router that are named."""
    behind = [name.partition("/")[2] for name in cfg.suite.methods]
    named = dict.fromkeys([cfg.pool.scheduler, cfg.pool.router, *cfg.suite.schedulers, *behind])
    folders = [find_artifact(cfg.runs_dir, target.name, "policies", name) for name in named if name not in ("", STATIC)]
    return [open_artifact(folder, "policies", target_fingerprint=target.fingerprint) for folder in folders]


def tell_lacking(cfg: Config, pool: Pool, requests: Sequence[Request]) -> None:
    """Say for which domains `expert` has no drafter and is the generalist."""
    if EXPERT in [domain_of(name.partition("/")[0]) for name in cfg.suite.methods]:
        wanted = dict.fromkeys(request.own_expert for request in requests)
        if lacking := [name for name in wanted if name not in map(domain_of, pool.names)]:
            say(f"no drafter of the pool is named {', '.join(lacking)}: there `expert` is {pool.names[0]}")


def timed_places(cfg: Config, requests: Sequence[Request]) -> list[int]:
    """Which requests are timed: the first of a stream, as many of each domain otherwise."""
    if cfg.suite.name in STREAMS:
        return list(range(min(cfg.suite.timed_prompts, len(requests))))
    return spread(list(requests), cfg.suite.timed_prompts)


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


def per_request(entries: Sequence[Entry]) -> dict[str, list[list[float]]]:
    """Tokens, cycles and seconds of every timed request, by method."""
    found: dict[str, list[list[float]]] = {}
    for entry in sorted((one for one in entries if not one.axis), key=lambda one: one.group):
        found.setdefault(entry.method, []).append([entry.num_tokens, len(entry.cycles), round(entry.seconds, 6)])
    return found
