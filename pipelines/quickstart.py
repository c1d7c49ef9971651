"""Four steps: the shipped pool's speed at once, its expert tuned on a few prompts, a bundle with it, all measured."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drafterforge import __version__
from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.locate import artifact_dir, find_artifact, list_artifacts
from drafterforge.artifacts.manifest import Manifest
from drafterforge.artifacts.staging import drop_staging, open_staging
from drafterforge.artifacts.typed import read_json
from drafterforge.assembly.bundles import is_name, named_bundle
from drafterforge.assembly.packing import make_bundle
from drafterforge.assembly.pools import RETRIEVAL, build_pool, check_selector, pool_names, retrieval_of
from drafterforge.assembly.runs import RunsFolder, open_drafter
from drafterforge.bundle.record import BUNDLE, read_record
from drafterforge.config.bundle import ExportConfig
from drafterforge.config.commands import EvaluateConfig, QuickstartConfig
from drafterforge.config.compose import to_dict
from drafterforge.config.evaluation import SuiteConfig
from drafterforge.config.hints import typed_target
from drafterforge.config.names import JOINT, parts_of
from drafterforge.config.pool import PoolConfig
from drafterforge.config.progress import say, table_console
from drafterforge.data.answering import user_turns
from drafterforge.data.chat import prompt_ids
from drafterforge.data.joined import JoinedAnswers, JoinedRows
from drafterforge.data.prompts import Prompt, load_prompts
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.evaluation.load_warning import warn_if_busy
from drafterforge.evaluation.measurements import Measurement
from drafterforge.evaluation.method_factory import BUNDLE as THE_BUNDLE
from drafterforge.evaluation.method_factory import DEFAULT, MethodFactory
from drafterforge.evaluation.mismatches import settle_mismatches
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.resume_cache import ResumeCache
from drafterforge.evaluation.rows import per_request, timed_rows
from drafterforge.evaluation.timing import TimingRun, time_methods
from drafterforge.pipelines.train_drafter import parents_of, train
from drafterforge.reporting.artifact import require_lossless, write_report
from drafterforge.reporting.console import print_table
from drafterforge.targets.device import describe_device
from drafterforge.targets.load import Target, load_target, target_name
from drafterforge.training.inputs import find_answers
from drafterforge.training.loggers import require_loggers, settings_of

Config = QuickstartConfig
Measured = tuple[list[dict[str, Any]], list[dict[str, Any]], list[Measurement]]  # rows, mismatches, ledger
STEPS = ("open", "tune", "export", "evaluate")
FIRST = ("method", "num_prompts", "num_tokens", "mat", "tokens_per_s", "speedup", "speedup_ci95", "mismatches")


def run(cfg: Config) -> Path:
    """Open the pool and show its speed, tune the domain's expert, export a bundle with it, measure them all."""
    began = time.perf_counter()
    check_start(cfg)
    prompts = None if cfg.answers else load_prompts(cfg.data, cfg.domain, cfg.seed)  # bad input should not wait
    warn_if_busy()
    target = load_target(cfg.target)
    say(f"target: {target.name}, {target.dtype} on {target.device}")
    generalist, expert = parents_of(cfg, target)
    names = [name for name in pool_names(RunsFolder(cfg.runs_dir, target), cfg.pool.drafters) if name != cfg.name]
    given = find_answers(cfg, target) if prompts is None else None
    requests = held_out(cfg, target, prompts, given)
    path = artifact_dir(cfg.runs_dir, target.name, "reports", cfg.name)
    shelves = open_shelves(cfg, target, path, names, requests)
    clock = Clock(shelves / "seconds.json", began)

    found = retrieval_of(RunsFolder(cfg.runs_dir, target), names, cfg.domain.name)
    first = first_look(cfg, target, names, found, requests, shelves)
    clock.done("open", f"opened {', '.join(names)}, which decode together, and compared them with plain decoding")

    answers = given or find_answers(cfg, target, prompts)
    tuned = open_drafter(train(cfg, target, answers), target)
    about = about_training(answers.rows("train", cfg.domain.alone), tuned)
    clock.done("tune", in_words(cfg, about))

    bundle = export_with(cfg, found, replaced=cfg.drafter.init if expert else "")
    clock.done("export", f"{bundle} has {cfg.name}" + (f" in place of {cfg.drafter.init}" if expert else " besides"))

    alone = [one[1].name for one in (generalist, expert) if one] + [cfg.name]
    rows, mismatches, entries = last_look(cfg, target, alone, bundle, requests, shelves)
    clock.done("evaluate", f"{', '.join(alone)} and the bundle were timed beside plain decoding")

    report, file = write_report(
        cfg.runs_dir,
        target,
        path.name,
        suite=f"quickstart, {cfg.domain.name}, held out",
        seed=cfg.seed,
        numerics=cfg.runtime.numerics,
        rows=rows,
        curves={
            "mismatches": mismatches,
            "per_request": per_request(entries),
            "quickstart": {"seconds": clock.seconds, "total_s": clock.total, "first": first, **about},
        },
        config=config_of(cfg) | {"drafter": to_dict(cfg.drafter), "trainer": settings_of(cfg.trainer)},
        parents=[*manifests(cfg, target, alone), *answers.manifests],
        measurements=entries,
    )
    copy = Path(cfg.runs_dir) / "quickstart" / "report.json"
    copy.parent.mkdir(parents=True, exist_ok=True)
    save_json_atomic(copy, report)
    drop_staging(path)
    print_table(report, table_console())
    typed = f"bundle={cfg.name}{typed_target(cfg)}"
    print(f'wrote {file} and {copy} after {clock.total / 60:.1f} min; next: drafterforge generate {typed} prompt="..."')
    require_lossless(report, file)
    return copy


class Clock:
    """Seconds of every step; those that an interrupted run finished are kept, and the next one adds to them."""

    def __init__(self, path: Path, began: float) -> None:
        self.path, self.began = path, began
        self.seconds: dict[str, float] = read_json(path) if path.is_file() else {}

    @property
    def total(self) -> float:
        """Of all steps."""
        return round(sum(self.seconds.values()), 2)

    def done(self, step: str, what: str) -> None:
        """Say what the step did since the one before."""
        now = time.perf_counter()
        spent, self.began = now - self.began, now
        self.seconds[step] = round(self.seconds.get(step, 0.0) + spent, 2)
        save_json_atomic(self.path, self.seconds)
        say(f"quickstart, {STEPS.index(step) + 1} of {len(STEPS)}, {step}: {what} ({spent:.0f} s)")


def check_start(cfg: Config) -> None:
    """Refuse what can be told to fail without the target: no drafters to start from, no expert of the domain."""
    require_loggers(cfg.trainer)
    check_selector(cfg.pool)
    name, init = target_name(cfg.target), cfg.drafter.init
    train_one = f"drafterforge train-drafter domain={cfg.domain.name}{typed_target(cfg)}"
    if not set(list_artifacts(cfg.runs_dir, name, "drafters")) - {cfg.name}:
        raise ConfigError(
            f"quickstart starts from trained drafters, and there are none for {name}, neither shipped nor in "
            f"{cfg.runs_dir}; type {train_one}"
        )
    if not is_name(init):
        raise ConfigError(f"drafter.init={init} is no name of a drafter; type drafter.init=NAME")
    other = f"drafterforge quickstart domain={cfg.domain.name} drafter.init=general{typed_target(cfg)}"
    find_artifact(cfg.runs_dir, name, "drafters", init, hint=other)


def held_out(
    cfg: Config, target: Target, prompts: dict[str, list[Prompt]] | None, answers: JoinedAnswers | None
) -> list[Request]:
    """Test prompts that the target can read; of given answers if there are no prompts."""
    if answers is not None:
        asked = [row.input_ids[: row.prompt_tokens] for row in answers.rows("test", cfg.domain.alone)]
    else:
        asked = [prompt_ids(target.tokenizer, user_turns(prompt.messages)[0]) for prompt in prompts["test"]]
    most = min(cfg.data.max_prompt_tokens, target.max_positions - max(cfg.first_tokens, cfg.eval.max_new_tokens))
    if not (fitting := [Request(tokens, cfg.domain.name) for tokens in asked if len(tokens) <= most]):
        raise ConfigError(f"all {len(asked)} held-out prompts are longer than {most} tokens; give shorter ones")
    return fitting[: max(cfg.first_prompts, cfg.eval.num_prompts)]


def config_of(cfg: Config) -> dict[str, Any]:
    """What decides the figures, but for the tuned expert."""
    parts = {key: to_dict(getattr(cfg, key)) for key in ("data", "eval", "pool", "runtime")}
    first = {"num_prompts": cfg.first_prompts, "max_new_tokens": cfg.first_tokens}
    return parts | {"first": first, "domain": cfg.domain.name, "seed": cfg.seed}


def manifests(cfg: Config, target: Target, names: Sequence[str]) -> list[Manifest]:
    """Of the drafters that have files."""
    trained = [name for name in parts_of(names) if name != RETRIEVAL]
    folders = [find_artifact(cfg.runs_dir, target.name, "drafters", name) for name in trained]
    return [open_drafter(folder, target) for folder in folders]


def open_shelves(cfg: Config, target: Target, path: Path, names: Sequence[str], requests: Sequence[Request]) -> Path:
    """The folder of what was measured; parts of other settings, prompts, drafters or machines are not taken over."""
    settings = config_of(cfg) | {
        "drafterforge": __version__,
        "target": target.fingerprint,
        "dtype": str(target.dtype),
        "device": describe_device(target.device),
        "drafters": [manifest.as_parent() for manifest in manifests(cfg, target, names)],
        "prompts": hashlib.sha256(json.dumps([request.tokens for request in requests]).encode()).hexdigest(),
    }
    if cfg.overwrite:
        drop_staging(path)
    return open_staging(path, settings)


def first_look(
    cfg: Config, target: Target, names: list[str], found: str, requests: Sequence[Request], shelves: Path
) -> list[dict[str, Any]]:
    """Rows of plain decoding, of the pool as it is and of its expert with what `found` retrieves, shown at once."""
    merged = [f"{cfg.drafter.init}{JOINT}{found}"] if cfg.drafter.init in names else []
    asking = evaluated(cfg, replace(cfg.pool, drafters=names), [DEFAULT, *merged], cfg.first_tokens)
    rows, *_ = measured(asking, target, requests[: cfg.first_prompts], shelves / "first")
    about = {"target": {"name": target.name}, "device": describe_device(target.device)}
    print_table({"suite": f"{cfg.domain.name}, before tuning", "rows": rows, **about}, table_console())
    return [{key: row[key] for key in FIRST} for row in rows]


def about_training(rows: JoinedRows, tuned: Manifest) -> dict[str, int]:
    """How much the expert was tuned on."""
    return {
        "train_prompts": len(rows),
        "answer_tokens": sum(row.answer_tokens for row in rows),
        "training_steps": tuned.metrics["steps"],
        "best_step": tuned.metrics["best_step"],
    }


def in_words(cfg: Config, about: dict[str, int]) -> str:
    """What tuning came to."""
    told = f"{cfg.name} went on from {cfg.drafter.init} for {about['training_steps']} steps"
    if about["best_step"] == 0:
        told += f", which did not better it on validation: it has the weights of {cfg.drafter.init}"
    return told


def export_with(cfg: Config, found: str, replaced: str) -> Path:
    """The bundle: the tuned expert with what `found` retrieves in its trees, and the generalist that it adds to.

    With pool.drafters= those, the tuned expert in place of the one it went on from; without one, besides.
    """
    given = cfg.pool.drafters or [f"{cfg.name}{JOINT}{found}"]
    swapped = [cfg.name if name == replaced else name for name in given]
    swapped += [] if cfg.name in parts_of(swapped) else [cfg.name]
    export = ExportConfig(
        target=cfg.target,
        pool=replace(cfg.pool, drafters=swapped),
        runtime=cfg.runtime,
        bundle=cfg.name,
        runs_dir=cfg.runs_dir,
        overwrite=True,
    )
    folder = named_bundle(export.bundle, target_name(export.target), export.runs_dir)
    there = (folder / BUNDLE).is_file() and not cfg.overwrite
    if there and cfg.name not in [entry.name for entry in read_record(folder).drafters]:
        raise ArtifactError(f"{folder} is not quickstart's; type name=OTHER, or overwrite=true to replace it")
    make_bundle(export, folder)
    return folder


def last_look(
    cfg: Config, target: Target, alone: list[str], bundle: Path, requests: Sequence[Request], shelves: Path
) -> Measured:
    """Plain decoding, each of these drafters and the bundle, on the same prompts."""
    asking = evaluated(cfg, PoolConfig(drafters=alone), [*alone, THE_BUNDLE], cfg.eval.max_new_tokens)
    cache = shelves / f"last-{read_record(bundle).digest[:16]}"
    return measured(asking, target, requests[: cfg.eval.num_prompts], cache, bundle)


def evaluated(cfg: Config, pool: PoolConfig, methods: list[str], max_new_tokens: int) -> EvaluateConfig:
    """As `eval` would be asked for it."""
    return EvaluateConfig(
        target=cfg.target,
        suite=SuiteConfig(domains=[cfg.domain.name], methods=methods, max_new_tokens=max_new_tokens),
        pool=pool,
        runtime=cfg.runtime,
        runs_dir=cfg.runs_dir,
        seed=cfg.seed,
    )


def measured(
    cfg: EvaluateConfig, target: Target, requests: Sequence[Request], folder: Path, bundle: Path | None = None
) -> Measured:
    """What the methods made of the requests, taking turns; parts that are in the folder are not made again."""
    folder.mkdir(exist_ok=True)
    pool, shape = build_pool(cfg.pool, cfg.runtime, RunsFolder(cfg.runs_dir, target), cfg.seed)
    factory = MethodFactory(cfg, target, pool, shape, bundle)
    timing = TimingRun(cfg.suite.max_new_tokens, cfg.seed)
    methods = factory.build(cfg.suite.methods)
    live = time_methods(timing, methods, requests, range(len(requests)), ResumeCache(folder))
    mismatches = settle_mismatches(cfg, factory, requests, live)
    return timed_rows(live, mismatches, {}, by_domain=False), mismatches, live
