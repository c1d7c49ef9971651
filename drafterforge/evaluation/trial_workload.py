"""The prompts of a planned command, and the small part of them that a trial answers and trains on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from drafterforge.artifacts.manifest import MANIFEST
from drafterforge.config.commands import PrepareDataConfig, TrainDrafterConfig
from drafterforge.data.answering import within_context
from drafterforge.data.answers import SPLITS
from drafterforge.data.joined import JoinedAnswers
from drafterforge.data.prompts import load_prompts
from drafterforge.evaluation.drafter_comparison import first_turns_ids
from drafterforge.evaluation.planning import ASSUMED_PROMPT, Workload
from drafterforge.prompts.prompt import Prompt, Transcript
from drafterforge.targets.load import Target
from drafterforge.training.initialisation import choose_init
from drafterforge.training.inputs import existing_answers, has_features, join_answers, named_answers
from drafterforge.training.jobs import drafter_run

TRIAL_STEPS, TRIAL_VALIDATIONS = 4, 2
TRIAL_VAL, TRIAL_TEST, TRIAL_DECODED = 4, 2, 16  # answers to validate and to decode from; tokens decoded
ENCODED = 2000  # prompts of a split that are tokenised; the lengths of others are those of these, in turn
LOCAL_LOGGERS = ("csv", "tensorboard")


@dataclass(frozen=True)
class PlannedPrompts:
    """The prompts of a command by split; those of answers that exist hold the answers."""

    prompts: Mapping[str, Sequence[Prompt]]
    answered: str = ""  # names of the artifacts that hold the answers; empty: they have to be made
    captured: bool = False  # their features are stored too
    trained: bool = False  # the drafter exists

    @staticmethod
    def of(cfg: PrepareDataConfig, target: Target) -> PlannedPrompts:
        """The prompts as the command reads them, from existing answers if there are any.

        ArtifactError if there are artifacts that the command would refuse.
        """
        names = list(getattr(cfg, "answers", ()))
        sets = [named_answers(cfg, target, name) for name in names]
        if not names:
            prompts = load_prompts(cfg.data, cfg.domain, cfg.seed)
            answers = existing_answers(cfg, target, prompts)
            if answers is None:
                return PlannedPrompts(prompts)
            sets = [answers]
        joined = JoinedAnswers(sets)
        trained = False
        if isinstance(cfg, TrainDrafterConfig):
            joined = join_answers(cfg, target, sets)
            run = drafter_run(choose_init(cfg, target), target, joined)
            trained = run.artifact.existing is not None and not cfg.overwrite
            if not trained:
                run.artifact.require_stageable()
        captured = cfg.data.features == "cached" and all([has_features(cfg, target, each) for each in joined.sets])
        rows = {split: joined.rows(split, cfg.domain.answers_domain) for split in SPLITS}
        prompts = {split: [_transcript(row) for row in rows[split]] for split in SPLITS}
        return PlannedPrompts(prompts, ", ".join(each.path.name for each in joined.sets), captured, trained)

    def lengths(self, target: Target) -> dict[str, list[int]]:
        """Tokens of every prompt."""
        lengths = {}
        for split, prompts in self.prompts.items():
            encoded = [len(ids) for ids in first_turns_ids(target, prompts[:ENCODED])]
            lengths[split] = [encoded[index % len(encoded)] for index in range(len(prompts) * bool(encoded))]
        return lengths


def _transcript(row) -> Prompt:
    transcript = Transcript(tuple(row.input_ids), row.prompt_tokens, row.finished)
    return Prompt(row.id, row.domain, row.task, (), "answers", transcript)


def trial_prompts(cfg: PrepareDataConfig, planned: PlannedPrompts) -> dict[str, list[Prompt]]:
    """A batch of training prompts and a few of the other splits, spread over all of them."""
    counts = {"train": max(8, cfg.data.batch_size), "val": TRIAL_VAL, "test": TRIAL_TEST}
    spread = {}
    for split, prompts in planned.prompts.items():
        count = min(len(prompts), counts[split])
        spread[split] = [prompts[index * len(prompts) // count] for index in range(count)]
    return spread


def measured_workload(planned: PlannedPrompts, lengths: dict[str, list[int]], tried: Sequence[int]) -> Workload:
    """The workload, with answers as long as the existing ones, else as those of a trial.  tried: their lengths."""
    if planned.answered:
        rows = [prompt.transcript for prompts in planned.prompts.values() for prompt in prompts if prompt.transcript]
        mean = sum(len(row.ids) - row.prompt_tokens for row in rows) / len(rows)
        return Workload(lengths, mean, f"{planned.answered}, {mean:.0f} tokens each")
    mean = sum(tried) / len(tried)
    return Workload(lengths, mean, f"{mean:.0f} tokens, as {len(tried)} answers of a trial have")


def assumed_workload(cfg: PrepareDataConfig, available: Mapping[str, int] = MappingProxyType({})) -> Workload:
    """The workload without a tokenizer: each answer as long as its limit.  available: prompts of splits, if known."""
    data = cfg.data
    counts = {"train": data.num_train, "val": data.num_val, "test": data.num_test}
    counts = {split: min(count, available.get(split, count)) for split, count in counts.items()}
    assumed = min(ASSUMED_PROMPT, data.max_prompt_tokens)
    prompts = {split: [assumed] * count for split, count in counts.items()}
    source = f"{data.max_new_tokens} tokens at most to prompts of {assumed} (assumed)"
    return Workload(prompts, data.max_new_tokens, source, prompt_limit=data.max_prompt_tokens)


def prompts_in_file(cfg: PrepareDataConfig) -> dict[str, int]:
    """Prompts of each split that data=jsonl has; empty for other sources."""
    if cfg.data.source != "jsonl" or getattr(cfg, "answers", ()):
        return {}
    return {split: len(prompts) for split, prompts in load_prompts(cfg.data, cfg.domain, cfg.seed).items()}


def resized(work: Workload, cfg: PrepareDataConfig) -> Workload:
    """The workload with at most `data.num_train` training prompts."""
    return replace(work, prompts={**work.prompts, "train": work.prompts["train"][: cfg.data.num_train]})


def small_config(cfg: PrepareDataConfig, target: Target, folder: Path, is_answered: bool) -> PrepareDataConfig:
    """The config of a trial in `folder`, where the drafters of the command's runs folder are linked to."""
    data = within_context(cfg.data, target.max_positions)
    answers = "given" if is_answered else "target" if data.answers == "served" else data.answers
    small = replace(cfg, runs_dir=str(folder), data=replace(data, answers=answers, endpoint="", served_model=""))
    if not isinstance(cfg, TrainDrafterConfig):
        return small
    drafters = Path(cfg.runs_dir) / target.name / "drafters"
    links = folder / target.name / "drafters"
    links.mkdir(parents=True)
    for path in drafters.glob(f"[!.]*/{MANIFEST}"):
        if path.parent.name != cfg.drafter_name:
            (links / path.parent.name).symlink_to(path.parent.resolve())
    trainer = replace(
        cfg.trainer,
        max_steps=TRIAL_STEPS,
        val_every=TRIAL_STEPS // TRIAL_VALIDATIONS,
        patience=TRIAL_VALIDATIONS + 1,
        accumulate=1,
        devices=1,
        num_nodes=1,
        strategy="auto",
        num_answers=None,
        loggers=[name for name in cfg.trainer.loggers if name in LOCAL_LOGGERS],
    )
    decoded = min(TRIAL_DECODED, cfg.eval.max_new_tokens)
    evaluation = replace(cfg.eval, num_prompts=min(TRIAL_TEST, cfg.eval.num_prompts), max_new_tokens=decoded)
    return replace(small, answers=[], val_answers=[], trainer=trainer, eval=evaluation)
