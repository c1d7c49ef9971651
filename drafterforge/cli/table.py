"""The table of commands."""

from __future__ import annotations

from dataclasses import dataclass

from drafterforge.config import bundle, catalogue, commands, learn, plan, serving
from drafterforge.errors import ConfigError


@dataclass(frozen=True)
class Command:
    """A row of the table."""

    module: str  # has `run(cfg)`; imported when the command is typed
    config: type
    summary: str
    resumes: bool = False  # after an interruption, the same command continues the work
    reports: tuple[str, ...] = ()  # kinds of inputs that the command itself checks, with better error messages
    check: str = ""  # MODULE:FUNCTION that refuses mistakes in the config before torch is imported
    spreads: bool = False  # works with a target that is spread over devices, as it does not decode with drafters
    loads: bool = False  # prints what it loads, as it is silent until then
    trains: bool = False  # on several devices, with a process for each
    lists: bool = False  # lists describe several drafters, which `run_together` of its module trains
    yaml: str = ""  # name of its file in `configs/`; empty: the module's

    @property
    def name(self) -> str:
        """Name of its file in `configs/`."""
        return self.yaml or self.module.rpartition(".")[2]


COMMANDS = {
    "prepare-data": Command(
        "drafterforge.pipelines.prepare_data",
        commands.PrepareDataConfig,
        "let the target answer prompts of a domain",
        resumes=True,
        check="drafterforge.data.sources:check_rows",
        spreads=True,
    ),
    "train-drafter": Command(
        "drafterforge.pipelines.train_drafter",
        commands.TrainDrafterConfig,
        "distil a drafter from the answers, and measure it on held-out prompts",
        resumes=True,
        check="drafterforge.training.checks:check_training",
        trains=True,
        lists=True,
        spreads=True,
    ),
    "train-policy": Command(
        "drafterforge.pipelines.train_policy",
        commands.TrainPolicyConfig,
        "train a tree scheduler on recorded traces, or a router, and measure it",
        resumes=True,
    ),
    "calibrate": Command(
        "drafterforge.pipelines.calibrate",
        commands.CalibrateConfig,
        "measure the latency of every step of a cycle on this device",
    ),
    "eval": Command(
        "drafterforge.pipelines.eval",
        commands.EvaluateConfig,
        "measure methods, drafters and selectors on a suite of prompts",
        resumes=True,
        check="drafterforge.evaluation.suite_checks:check_evaluation",
    ),
    "generate": Command(
        "drafterforge.pipelines.generate",
        serving.GenerateConfig,
        "answer one prompt, with or without a drafter",
        check="drafterforge.assembly.checks:check_generate",
        loads=True,
    ),
    "export": Command(
        "drafterforge.pipelines.export",
        bundle.ExportConfig,
        "pack drafters and policies into a bundle, or for SGLang and vLLM",
        check="drafterforge.assembly.checks:check_export",
    ),
    "serve": Command(
        "drafterforge.pipelines.serve",
        serving.ServeConfig,
        "serve an OpenAI-compatible HTTP API",
        check="drafterforge.assembly.checks:check_decoding",
    ),
    "learn": Command(
        "drafterforge.pipelines.learn",
        learn.LearnCommandConfig,
        "show, export, take back or delete what `serve learn=on` has learned, or replay a log",
    ),
    "import": Command(
        "drafterforge.pipelines.import_drafter",
        bundle.ImportConfig,
        "turn a published EAGLE-3 head or block drafter into a drafter",
        yaml="import",  # a keyword, so the module has another name
    ),
    "quickstart": Command(
        "drafterforge.pipelines.quickstart",
        commands.QuickstartConfig,
        "show the speed of the shipped pool, tune its SQL expert, bundle it and measure it",
        resumes=True,
        reports=("drafters",),
    ),
    "plan": Command(
        "drafterforge.pipelines.plan",
        plan.PlanConfig,
        "estimate the time, disk and memory of a command before it is run, and say what does not fit",
        reports=("target",),
        spreads=True,
    ),
    "doctor": Command(
        "drafterforge.pipelines.doctor",
        commands.DoctorConfig,
        "show device, dtype, target and caches, and problems with them",
        reports=("target",),
    ),
    "inspect": Command(
        "drafterforge.pipelines.inspect",
        commands.InspectConfig,
        "show the contents of an artifact, and check its hashes",
        check="drafterforge.artifacts.locate:check_name",
    ),
}


def find_command(name: str) -> Command:
    """The row of a command; errors name the nearest one."""
    if name not in COMMANDS:
        spellings = {command: repr(command) for command in COMMANDS}
        if name == "compare":
            raise ConfigError("no command 'compare'; type `drafterforge eval compare=A,B` with two reports")
        hint = catalogue.did_you_mean(name, spellings) or f" (have: {', '.join(COMMANDS)})"
        raise ConfigError(f"no command {name!r}{hint}")
    return COMMANDS[name]
