"""Refuses methods and settings of a suite that cannot work, before anything is decoded."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drafterforge.artifacts.bundles import BUNDLE, find_bundle, named_bundle_dir
from drafterforge.artifacts.json_input import read_json
from drafterforge.artifacts.locate import find_artifact, list_artifacts
from drafterforge.assembly.checks import check_selector
from drafterforge.config.bundle import MAIN
from drafterforge.config.catalogue import did_you_mean
from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.evaluation import (
    AUTOREGRESSIVE,
    DATASTORE,
    EXPERT,
    GENERALIST,
    GENERATE,
    LOOKUP,
    OPENVINO,
    VLLM,
)
from drafterforge.config.names import AUTO, POOL, RETRIEVAL, domain_of, parse_hybrid, parse_tree
from drafterforge.config.progress import say
from drafterforge.config.runtime import RuntimeConfig
from drafterforge.data.questions import load_questions
from drafterforge.errors import ConfigError
from drafterforge.evaluation.vllm_server import check_arguments, check_port, find_command
from drafterforge.selectors import check_options
from drafterforge.selectors import names as selector_names

if TYPE_CHECKING:  # heavy
    from drafterforge.evaluation.requests import Request
    from drafterforge.runtime.pool import Pool

EXTERNAL = (GENERATE, LOOKUP, OPENVINO)


def check_evaluation(cfg: EvaluateConfig) -> None:
    """Refuse unknown reports, methods, options and question files; imports no torch."""
    if not cfg.compare:
        return check_suite(cfg)
    for name in map(str.strip, cfg.compare.split(",")):
        if not Path(name).expanduser().exists():
            hint = "drafterforge eval suite=quick name=NAME"
            find_artifact(cfg.runs_dir, cfg.target.folder_name, "reports", name, hint=hint)


def check_methods(names: Sequence[str], drafters: Sequence[str] | None = None) -> None:
    """Refuse unknown method names.  drafters: of the pool; None: not loaded yet, so that names are not checked."""
    selectors = [name for name in selector_names() if name not in ("static", "oracle")]
    ours = [AUTOREGRESSIVE, AUTO, GENERALIST, EXPERT, POOL, RETRIEVAL, DATASTORE]
    candidates = [*ours, *EXTERNAL, *selectors, *(drafters or ())]
    for name in names:
        base, slash, policy = name.partition("/")
        bare = base in (AUTOREGRESSIVE, AUTO, *EXTERNAL) or parse_hybrid(base)
        if slash and (bare or not policy):
            raise ConfigError(f"suite.methods has {name!r}; a policy follows a drafter or selector, as general/planner")
        if tree := parse_tree(policy):
            RuntimeConfig(*tree)  # refuses trees out of range
        if drafters is None or base in candidates or parse_hybrid(base):
            continue
        close = difflib.get_close_matches(base, candidates, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f" (have: {', '.join(candidates)})"
        raise ConfigError(f"suite.methods has {base!r}, which is no drafter of the pool, selector or method{hint}")


def check_suite(cfg: EvaluateConfig) -> None:
    """Refuse unknown names and options before anything is loaded."""
    if cfg.suite.name == "papers" and not cfg.suite.questions:
        raise ConfigError("suite=papers needs question files; type suite.questions=FOLDER, with *.jsonl in it")
    if cfg.suite.name == VLLM:
        return check_servers(cfg)
    check_selector(cfg.pool)
    check_questions(cfg)
    names = cfg.pool.drafters or list_artifacts(cfg.runs_dir, cfg.target.folder_name, "drafters")
    check_methods(cfg.suite.all_methods, [*names, *(Path(name).name for name in names)])
    in_batches = {"auto": cfg.suite.cell_methods, "scaling": cfg.suite.methods}.get(cfg.suite.name, ())
    for name in cfg.suite.cell_methods if cfg.suite.name == "auto" else ():
        if name in EXTERNAL:
            raise ConfigError(
                f"suite.cell_methods has {name}, another program, which decodes one request at a time; name it in "
                "suite.methods only"
            )
    if max(cfg.suite.batch_sizes, default=1) > 1:
        for name in in_batches:
            if domain_of(name.partition("/")[0]) == EXPERT:
                raise ConfigError(
                    f"the requests of a batch have different experts, so {name} cannot decode batches of "
                    f"{max(cfg.suite.batch_sizes)}; leave it out of suite.methods and suite.cell_methods, or type "
                    "suite.batch_sizes=[1]"
                )
    if OPENVINO in cfg.suite.methods:
        from drafterforge.evaluation.other_engines import require_openvino

        require_openvino(cfg.suite.openvino)
    for name in cfg.suite.selectors:
        check_options(name, ())
    if "router" in cfg.suite.selectors and not cfg.pool.router:
        raise ConfigError("suite.selectors names router, but the pool has none; type pool.router=NAME")
    if "oracle" in cfg.suite.selectors:
        raise ConfigError(
            "suite.selectors names oracle, which is the row `best in hindsight` of every report; leave it out"
        )


def check_servers(cfg: EvaluateConfig) -> None:
    """Refuse a missing program, unknown methods, and arguments and ports that cannot be used."""
    find_command(cfg.suite.vllm_command)
    check_arguments(cfg.suite.server_args)
    check_questions(cfg)
    check_selector(cfg.pool)
    drafters = servable_names(cfg)
    methods = [AUTOREGRESSIVE, GENERALIST, POOL, *(drafters or ())]
    for number, name in enumerate(dict.fromkeys([AUTOREGRESSIVE, *cfg.suite.methods])):
        if drafters is not None and name not in methods:
            raise ConfigError(
                f"suite=vllm has no method {name!r}{did_you_mean(name, methods)} (have: {', '.join(methods)})"
            )
        check_port(cfg.suite.ports + number, name)


def servable_names(cfg: EvaluateConfig) -> list[str] | None:
    """Names of the drafters of the bundle, or of the runs folder; None: the bundle has to be opened first."""
    if cfg.bundle:
        folder = Path(find_bundle(cfg.bundle, cfg.target.folder_name, cfg.runs_dir)).expanduser()
    else:
        folder = named_bundle_dir(MAIN, cfg.target.folder_name, cfg.runs_dir)
    if (folder / BUNDLE).is_file():
        record = read_json(folder / BUNDLE)
        entries = record.get("drafters") if isinstance(record, dict) else None
        if not isinstance(entries, list):
            return None  # a damaged bundle is refused when it is opened
        return [str(entry.get("name")) for entry in entries if isinstance(entry, dict)]
    if cfg.bundle:
        return None
    names = cfg.pool.drafters or list_artifacts(cfg.runs_dir, cfg.target.folder_name, "drafters")
    return [Path(name).name for name in names]


def check_questions(cfg: EvaluateConfig) -> None:
    """Refuse question files that are missing or damaged; a data set of the hub is read later."""
    questions = cfg.suite.questions
    if questions and (Path(questions).expanduser().exists() or questions.startswith((".", "~", "/"))):
        load_questions(questions, cfg.suite.benchmarks)


def report_missing_experts(cfg: EvaluateConfig, pool: Pool, requests: Sequence[Request]) -> None:
    """Print the domains without a drafter, for which `expert` is the generalist."""
    if EXPERT in [domain_of(name.partition("/")[0]) for name in cfg.suite.methods]:
        experts = dict.fromkeys(request.expert_name for request in requests)
        if missing := [name for name in experts if name not in map(domain_of, pool.names)]:
            say(f"the pool has no drafter for {', '.join(missing)}: there `expert` is {pool.names[0]}")
