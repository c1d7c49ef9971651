"""From a configuration of `train-drafter` to the job that trains its drafter, and the artifact that it becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.locate import artifact_dir
from drafterforge.artifacts.run import ArtifactRun, artifact_run
from drafterforge.assembly.runs import require_no_experts
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.data import DataConfig
from drafterforge.config.progress import say
from drafterforge.data.features import JoinedFeatures
from drafterforge.data.joined import JoinedAnswers
from drafterforge.drafters.base import DrafterKind, TrainedDrafter, TrainingJob
from drafterforge.drafters.registry import trained_kind
from drafterforge.errors import ConfigError
from drafterforge.targets.load import Target
from drafterforge.training import ranks
from drafterforge.training.batches import PackedData
from drafterforge.training.inputs import open_features, packed, training_batches
from drafterforge.training.launch import placement
from drafterforge.training.loggers import keep_logs, settings_of
from drafterforge.training.parents import parents_of, report_vocabulary, with_lora_of
from drafterforge.training.streamed import StreamedData


class TrainingInputs:
    """Answers and features of a drafter, as packed batches; features are captured when they are first read."""

    def __init__(self, cfg: TrainDrafterConfig, target: Target, answers: JoinedAnswers) -> None:
        self.cfg, self.target, self.answers = cfg, target, answers
        self.features = cache(self._open_features)

    def _open_features(self) -> JoinedFeatures:
        with ranks.first_rank_first():
            return open_features(ranks.reading(self.cfg), self.target, self.answers)

    def batches(self, split: str) -> PackedData | StreamedData:
        """Endless batches of the training answers, or those of a stream until it ends; the validation answers once."""
        if split == "train":
            return training_batches(self.cfg, self.target, self.answers, self.features())
        return packed(self.cfg, self.answers, self.features(), split)

    def stream(self, split: str) -> tuple:
        """What decides the batches: equal for drafters that read the same ones."""
        cfg, rows = self.cfg, self.answers.rows(split, self.cfg.domain.answers_domain)
        folders = tuple(str(answers.path.resolve()) for answers in self.answers.sets)
        return split, folders, rows.locations.tobytes(), cfg.trainer.tokens_per_batch, split == "train" and cfg.seed


@dataclass(frozen=True)
class DrafterRun:
    """A drafter to train."""

    kind: DrafterKind
    job: TrainingJob
    artifact: ArtifactRun
    inputs: TrainingInputs

    @property
    def path(self) -> Path:
        """Folder of the artifact."""
        return self.artifact.path

    def is_finished(self) -> bool:
        """Whether the drafter was trained before; says so."""
        finished = self.artifact.existing is not None and not self.artifact.overwrite
        if finished:
            is_copy = self.artifact.existing.metrics.get("best_step") == 0
            result = ", which did not improve it: it has the weights that it started from" if is_copy else ""
            say(f"drafter: {self.path} was trained before with these settings{result}")
        return finished

    def write(self, drafter: TrainedDrafter) -> Path:
        """Write the artifact and say what training reached."""
        with self.artifact.write(dict(drafter.metrics)) as folder:
            drafter.save(folder)
            if drafter.curve is not None:
                save_json_atomic(folder / "curves.json", drafter.curve)
                keep_logs(self.artifact.staging_dir, folder)
        say(f"drafter: {drafter.summary}, {self.path}")
        return self.path


def drafter_run(cfg: TrainDrafterConfig, target: Target, answers: JoinedAnswers) -> DrafterRun:
    """The drafter of this configuration; ArtifactError if its folder holds one of other settings."""
    kind = trained_kind(cfg.drafter.kind)
    parent, origin = parents_of(cfg, target)
    if origin:
        cfg = with_lora_of(cfg, origin.manifest)
    if parent:
        report_vocabulary(cfg, parent)
    inputs = TrainingInputs(cfg, target, answers)
    job = TrainingJob(
        config=cfg.drafter,
        trainer=cfg.trainer,
        target=target,
        answers=answers,
        domain=cfg.domain.name,
        seed=cfg.seed,
        input_settings={
            "trainer": settings_of(cfg.trainer),
            "seed": cfg.seed,
            "features": "streamed" if cfg.data.stream else cfg.data.features,
            "dtype": str(target.dtype),
            **stream_settings(cfg.data),
            **answers.recorded_settings,
        },
        answers_domain=cfg.domain.answers_domain,
        parent=parent,
        origin=origin,
        batches=lambda: inputs.batches("train"),
    )
    parents = [*answers.manifests, *([parent.manifest] if parent else [])]
    require_replaceable(cfg, target)
    path = artifact_dir(cfg.runs_dir, target.name, "drafters", cfg.drafter_name)
    settings = kind.recorded_settings(job)
    artifact = artifact_run(path, "drafters", target, settings, parents, overwrite=cfg.overwrite)
    return DrafterRun(kind, job, artifact, inputs)


def require_replaceable(cfg: TrainDrafterConfig, target: Target) -> None:
    """ConfigError if LoRA experts add to the drafter that this one would replace."""
    if cfg.overwrite:
        require_no_experts(artifact_dir(cfg.runs_dir, target.name, "drafters", cfg.drafter_name))


def stream_settings(data: DataConfig) -> dict[str, int]:
    """The recorded settings of a stream's reading; none where they are the default, which older drafters lack."""
    epochs = data.stream_epochs
    return {"stream_epochs": epochs} if data.stream and epochs != DataConfig.stream_epochs else {}


def share_batches(runs: Sequence[DrafterRun], split: str) -> list[PackedData]:
    """The batches of each run; the same object for runs that read the same ones."""
    streams: dict[tuple, PackedData] = {}
    for run in runs:
        if (stream := run.inputs.stream(split)) not in streams:
            streams[stream] = run.inputs.batches(split)
    return [streams[run.inputs.stream(split)] for run in runs]


def require_together(cfgs: Sequence[TrainDrafterConfig]) -> None:
    """ConfigError if these drafters cannot be trained together, before anything is loaded."""
    names = Counter(cfg.drafter_name for cfg in cfgs)
    if repeated := [name for name, count in names.items() if count > 1]:
        typed = ",".join(f"{cfg.domain.name}-{number}" for number, cfg in enumerate(cfgs, start=1))
        raise ConfigError(f"{names[repeated[0]]} drafters would be called {repeated[0]}; type name=[{typed}]")
    prepared = Counter((cfg.domain.name, cfg.data.path, cfg.data.dataset, cfg.seed) for cfg in cfgs if not cfg.answers)
    for (domain, *_), count in prepared.items():
        if count > 1:
            raise ConfigError(
                f"{'both' if count == 2 else count} drafters need the same answers; make them first: `drafterforge "
                f"prepare-data domain={domain}`, then add answers={domain}"
            )
    first = cfgs[0]
    if placement() or (first.trainer.devices or 1) > 1 or (first.trainer.num_nodes or 1) > 1:
        raise ConfigError(
            "several drafters are trained on one device; leave trainer.devices out, or type one a command"
        )
    if first.data.stream:
        raise ConfigError(
            "data.stream= is read by one drafter a command; several commands may read one stream together"
        )
    if "wandb" in first.trainer.loggers:
        raise ConfigError(
            "trainer.loggers: wandb follows one drafter a run; leave it out, or type one drafter a command"
        )
    require_adapters([cfg for cfg in cfgs if not cfg.drafter.undecided])


def require_adapters(cfgs: Sequence[TrainDrafterConfig]) -> None:
    """ConfigError for a drafter that is no LoRA expert, or of a kind that is not trained together."""
    for cfg in cfgs:
        if not cfg.drafter.is_adapter:
            raise ConfigError(
                f"{cfg.drafter_name} is no LoRA expert, and only LoRA experts of one generalist are trained together; "
                "type drafter=lora, or one drafter a command"
            )
        if type(kind := trained_kind(cfg.drafter.kind)).train_together is DrafterKind.train_together:
            raise ConfigError(
                f"drafter={kind.name} trains one drafter a command; type drafter=lora, or one drafter a command"
            )


def require_one_generalist(cfgs: Sequence[TrainDrafterConfig], target: Target) -> None:
    """ConfigError if the drafters are not LoRA experts of one generalist."""
    require_adapters(cfgs)
    generalists = {parents_of(cfg, target)[0].folder.resolve(): cfg.drafter_name for cfg in cfgs}
    if len(generalists) > 1:
        pairs = ", ".join(f"{name} to {folder.name}" for folder, name in generalists.items())
        raise ConfigError(
            f"experts that are trained together add to one generalist, got {pairs}; type one drafter a command"
        )
