"""A stream of requests through the pool: the best drafter of each domain, what every selector makes of it, how fast."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from drafterforge.artifacts.locate import find_artifact
from drafterforge.compose import to_dict
from drafterforge.data.chat import prompt_ids
from drafterforge.data.prompts import Prompt, load_prompts
from drafterforge.data.rephrase import kinds, rephrased
from drafterforge.errors import ConfigError
from drafterforge.evaluation.lossless import compare, counted
from drafterforge.evaluation.measure import AUTOREGRESSIVE, Method, measure
from drafterforge.evaluation.report import build_row
from drafterforge.evaluation.selection import Contest, Cycles, tuned
from drafterforge.evaluation.story import Story, tell
from drafterforge.pipelines.console import bar, say, table_console
from drafterforge.pipelines.decode import open_drafter
from drafterforge.pipelines.pool import RETRIEVAL, build_pool, check_selector
from drafterforge.pipelines.reports import compare_saved, require_lossless, write_report
from drafterforge.runtime.batch import Generation
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.runtime.pool import Pool
from drafterforge.schema import DataConfig, DomainConfig, EvaluateConfig
from drafterforge.selectors import check_options, wants_divergence
from drafterforge.selectors import names as selector_names
from drafterforge.target.load import Target, load_target
from drafterforge.tree.grow import TreeShape

Config = EvaluateConfig
UNTAUGHT = ("static", "router", "oracle")  # selectors that need to be told a drafter, or a router


@dataclass(frozen=True)
class Request:
    """One prompt of the stream."""

    tokens: list[int]
    domain: str  # of the answer
    before: str = ""  # domain of the conversation's turn before, if there is one


def run(cfg: Config) -> Path:
    """Decode the stream with every drafter, replay every selector on it, and report."""
    if cfg.compare:
        return compare_saved(cfg.compare, cfg.runs_dir, cfg.target.name)
    check_selectors(cfg)
    target = load_target(cfg.target)
    pool, shape = build_pool(cfg.pool, cfg.runtime, cfg.runs_dir, target, cfg.seed)
    requests = stream(cfg, target, cfg.suite.num_prompts, cfg.seed)
    answers = answered(cfg, target, requests, "answering the stream")
    contest = told(cfg, target, pool, shape, requests, answers)
    tuning = None
    if cfg.suite.tuning_prompts:
        reported = [request.tokens for request in requests]
        drawn = stream(cfg, target, cfg.suite.tuning_prompts, cfg.seed + 1)
        others = [request for request in drawn if request.tokens not in reported]
        found = answered(cfg, target, others, "answering the tuning stream")
        tuning = told(cfg, target, pool, shape, others, found)
    rows = replayed(cfg, pool, contest, tuning)
    live = decoded(cfg, target, pool, shape, requests, answers, contest) if cfg.suite.check_live else []
    timed_rows, details = timed(cfg, target, pool, shape, requests)
    matrix = domain_matrix(contest, [requests[place].domain for place in contest.places])
    trained = [name for name in pool.names if name != RETRIEVAL]
    folders = [find_artifact(cfg.runs_dir, target.name, "drafters", name) for name in trained]
    report, path = write_report(
        cfg.runs_dir,
        target,
        cfg.name or cfg.suite.name,
        suite=cfg.suite.name,
        seed=cfg.seed,
        numerics=cfg.runtime.numerics,
        rows=timed_rows + rows,
        curves={"mat_by_domain": matrix, "live": live, "mismatches": details},
        config={
            "suite": to_dict(cfg.suite),
            "pool": to_dict(cfg.pool),
            "runtime": to_dict(cfg.runtime),
            "seed": cfg.seed,
        },
        parents=[open_drafter(folder, target) for folder in folders],
    )
    show(report, cfg.pool.selector)
    print(f"wrote {path}")
    require_lossless(report, path)
    return path.parent


def check_selectors(cfg: Config) -> None:
    """Refuse names and options that do not exist before anything is loaded or decoded."""
    check_selector(cfg.pool)
    for name in cfg.suite.selectors:
        check_options(name, ())
    if "router" in cfg.suite.selectors and not cfg.pool.router:
        raise ConfigError("suite.selectors names router, and there is none; type pool.router=NAME")
    if "oracle" in cfg.suite.selectors:
        raise ConfigError("suite.selectors names oracle, which is the row `best in hindsight` anyway; leave it out")


def replayed_selectors(cfg: Config) -> list[str]:
    """The selectors to replay."""
    return cfg.suite.selectors or [name for name in selector_names() if name not in UNTAUGHT]


def own_options(cfg: Config, pool: Pool) -> dict[str, Any]:
    """Options of the pool's own selector, its seed left out."""
    return {key: value for key, value in pool.options.items() if key != "seed"}


def stream(cfg: Config, target: Target, count: int, seed: int) -> list[Request]:
    """Held-out prompts of all domains in a seeded order; some go on from an answer of another domain."""
    each = -(-2 * count // len(cfg.suite.domains))
    data = DataConfig(num_train=1, num_val=1, num_test=each)
    drawn = {name: load_prompts(data, DomainConfig(name=name), seed)["test"] for name in cfg.suite.domains}
    draw = random.Random(seed)
    prompts = [(name, prompt) for name, found in drawn.items() for prompt in reworded(cfg, found, seed)]
    draw.shuffle(prompts)
    going_on = round(cfg.suite.conversations * count) if len(drawn) > 1 else 0
    first = [(name, list(prompt.messages)) for name, prompt in prompts]
    openings = first[count : count + going_on]
    engine = Engine(target, max_batch=cfg.suite.batch_size)
    replies = engine.generate([prompt_ids(target.tokenizer, m) for _, m in openings], cfg.suite.max_new_tokens)
    requests = [Request(prompt_ids(target.tokenizer, messages), name) for name, messages in first[going_on:count]]
    for (before, messages), reply in zip(openings, replies, strict=True):
        name, following = next((n, m) for n, m in first[count + going_on :] + first if n != before)
        first.remove((name, following))
        turns = [*messages, {"role": "assistant", "content": reply.text}, *following]
        requests.append(Request(prompt_ids(target.tokenizer, turns), name, before))
    draw.shuffle(requests)
    return requests


def reworded(cfg: Config, prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Prompts as they are; for suite=ood in other words, kinds in turn."""
    if cfg.suite.name != "ood":
        return list(prompts)
    each = [rephrased(prompts, kind, "test", seed) for kind in kinds()]
    return [each[place % len(each)][place] for place in range(len(prompts))]


def answered(cfg: Config, target: Target, requests: Sequence[Request], title: str) -> list[Generation]:
    """The target's own answers."""
    engine, found = Engine(target, max_batch=cfg.suite.batch_size), []
    with bar(title, len(requests)) as progress:
        for start in range(0, len(requests), 4 * cfg.suite.batch_size):
            part = [request.tokens for request in requests[start : start + 4 * cfg.suite.batch_size]]
            found += engine.generate(part, cfg.suite.max_new_tokens)
            progress.advance(len(part))
    return found


def told(
    cfg: Config,
    target: Target,
    pool: Pool,
    shape: TreeShape,
    requests: Sequence[Request],
    answers: Sequence[Generation],
) -> Contest:
    """What every drafter would have done for each answer, and what the router makes of its prompt."""
    chosen = [(cfg.pool.selector, cfg.pool.options), *((name, {}) for name in replayed_selectors(cfg))]
    divergences = any(wants_divergence(name, options) for name, options in chosen)
    stories: list[Story] = []
    with bar("looking at every position", len(answers)) as progress:
        for answer in answers:
            stories.append(tell(target, pool, shape, answer, divergences))
            progress.advance()
    contest = Contest.of(stories, [request.tokens for request in requests])
    return contest if pool.router is None else replace(contest, advice=advice(target, pool, contest))


def replayed(cfg: Config, pool: Pool, contest: Contest, tuning: Contest | None) -> list[dict[str, Any]]:
    """A row for every drafter alone, the best in hindsight, and every selector."""
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
    rows = []
    for method, selector, options, played in plays:
        figures = {key: round(value, 4) for key, value in contest.figures(played).items()}
        p = contest.paired_p(ours, played)
        rows.append(
            {
                "method": method,
                "selector": selector,
                "scheduler": "static",
                "drafters": contest.names,
                "domain": "mixed",
                "source": "replay",
                "options": options,
                **figures,
                "p_selector_no_better": p,
            }
        )
    return rows


def advice(target: Target, pool: Pool, contest: Contest) -> list[np.ndarray]:
    """The router's law for every prompt of the stream."""
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
    methods.append((cfg.pool.selector, Engine(target, pool, shape)))
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


def timed(
    cfg: Config, target: Target, pool: Pool, shape: TreeShape, requests: Sequence[Request]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of methods that take turns request by request, one request at a time, and their mismatches."""
    prompts = [request.tokens for request in requests[: cfg.suite.timed_prompts]]
    if not prompts:
        return [], []
    numerics = choose_numerics(cfg.runtime.numerics, target)
    methods = [Method(AUTOREGRESSIVE, Engine(target, numerics="fast"))]
    first = pool.names[0]
    alone = Engine(target, pool.drafters[first], pool.shape_of(first, shape), numerics=numerics)
    methods.append(Method(f"{first} alone", alone, "static", "static", [first]))
    engine = Engine(target, pool, shape, numerics=numerics)
    methods.append(Method(f"{cfg.pool.selector} over the pool", engine, cfg.pool.selector, "static", pool.names))
    with bar("timing", len(prompts) * len(methods)) as progress:
        found = measure(methods, prompts, cfg.suite.max_new_tokens, progress.advance)
    rows, details = [], []
    for method in methods:
        mismatches = compare(method.name, target, found[method.name], found[AUTOREGRESSIVE])
        details += [one.as_dict() for one in mismatches]
        rows.append(
            build_row(
                method,
                found[method.name],
                found[AUTOREGRESSIVE],
                domain="mixed",
                mismatches=counted(mismatches),
                dtype=str(target.dtype).removeprefix("torch."),
                numerics=method.engine.numerics,
            )
            | {"source": "live"}
        )
    return rows, details


def domain_matrix(contest: Contest, domains: Sequence[str]) -> dict[str, dict[str, float]]:
    """MAT of every drafter alone, by the domain of the answers."""
    tokens, static = contest.tokens, contest.static
    found: dict[str, dict[str, float]] = {}
    for domain in sorted(set(domains)):
        here = np.array([one == domain for one in domains])
        mats = tokens[here].sum() / static[here].sum(axis=0)
        found[domain] = {name: round(float(mat), 3) for name, mat in zip(contest.names, mats, strict=True)}
    return found


def show(report: dict[str, Any], own: str) -> None:
    """The tables a reader wants first; own: the pool's selector."""
    console = table_console()
    matrix = report["curves"]["mat_by_domain"]
    drafters = list(next(iter(matrix.values())))
    table = Table(title="MAT by drafter and domain of the answer", title_justify="left")
    for heading in ("drafter", *matrix):
        table.add_column(heading, justify="left" if heading == "drafter" else "right")
    for name in drafters:
        best = {domain: max(row.values()) for domain, row in matrix.items()}
        cells = [f"{row[name]:.2f}{'*' if row[name] == best[domain] else ''}" for domain, row in matrix.items()]
        table.add_row(name, *cells)
    console.print(table)
    told_p = (
        f"p: one-sided Wilcoxon over requests, small where {own}'s MAT is higher than the row's by more than chance"
    )
    table = Table(title="selectors, replayed on the same answers", caption=told_p, title_justify="left")
    headings = ("method", "MAT", "of hindsight", "regret, cycles", "on the best", "switches", "p", "constants")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("method", "constants") else "right")
    for row in sorted((r for r in report["rows"] if r["source"] == "replay"), key=lambda row: -row["mat"]):
        p = row["p_selector_no_better"]
        table.add_row(
            row["method"],
            f"{row['mat']:.3f}",
            f"{row['of_hindsight']:.3f}",
            f"{row['regret_cycles']:.2f}",
            f"{row['share_on_best']:.2f}",
            f"{row['switches_per_cycle']:.2f}",
            "" if p is None else f"{p:.1g}",
            ", ".join(f"{key}={value}" for key, value in row["options"].items()),
        )
    console.print(table)
    live = [row for row in report["rows"] if row["source"] == "live"]
    if live:
        table = Table(title="live, one request at a time", title_justify="left")
        for heading in ("method", "MAT", "tokens/s", "speed-up", "select ms a cycle", "mismatches"):
            table.add_column(heading, justify="left" if heading == "method" else "right")
        for row in live:
            select = 1e3 * row["time_s"]["select"] / max(row["num_cycles"], 1)
            table.add_row(
                row["method"],
                f"{row['mat']:.2f}",
                f"{row['tokens_per_s']:.1f}",
                f"{row['speedup']:.2f}x",
                f"{select:.2f}",
                str(row["mismatches"]),
            )
        console.print(table)
    if not report["curves"]["live"]:
        return
    other = [text for one in report["curves"]["live"] for text in one["other_text"]]
    margins = ", ".join(f"{text['margin']:.1e}" for text in other)
    differing = sum(one["requests_with_other_cycles"] for one in report["curves"]["live"])
    at = f" (at margins {margins})" if other else ""
    say(f"live runs: {len(other)} texts{at} and {differing} cycle counts differ from the replay")
