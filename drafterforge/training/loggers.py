"""Loggers of a training: CSV and TensorBoard, which a resumed run continues; W&B and MLflow, where it is a new run."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from drafterforge.config.renamed import UNCOMPARED
from drafterforge.config.trainer import TrainerConfig
from drafterforge.errors import ConfigError

LOGS = "logs"  # folder of all loggers
EXTRAS = ("wandb", "mlflow")  # optional packages, and the extras that install them
DESTINATIONS = ("project", "wandb_mode", "mlflow_uri")  # keys that decide where is logged, and nothing else
DEVICES = ("devices", "num_nodes", "strategy")  # keys that decide where is computed, and nothing else
# settings that older drafters lack, with their defaults
ADDED = {"num_answers": None, "val_ttt_steps": None, "loss": "cross_entropy", "lk_eta": 3.0}


class ResumedCSVLogger(CSVLogger):
    """Keeps the rows that were logged before `first_step`; lightning's logger deletes them."""

    def __init__(self, folder: Path, version: str, first_step: int) -> None:
        # a row is written when it is logged, as a killed process could not write it later
        super().__init__(str(folder), name=LOGS, version=version, flush_logs_every_n_steps=1)
        self.first_step = first_step

    @property
    def experiment(self) -> ExperimentWriter:
        """The writer, holding the earlier rows until it first saves."""
        if self._experiment is None:
            rows = self._earlier_rows()
            super().experiment.metrics.extend(rows)
        return self._experiment

    def _earlier_rows(self) -> list[dict[str, str]]:
        path = Path(self.log_dir) / ExperimentWriter.NAME_METRICS_FILE
        if not path.is_file():
            return []
        with path.open(newline="") as file:
            complete = [row for row in csv.DictReader(file) if None not in row.values()]
        return [row for row in complete if row["step"].isdigit() and int(row["step"]) < self.first_step]


class EndedWandbLogger(WandbLogger):
    """Ends its run with the training, so its files are complete and the next training gets a run of its own."""

    def finalize(self, status: str) -> None:
        """End the run."""
        super().finalize(status)
        if self._experiment is not None:
            self._experiment.finish(exit_code=0 if status == "success" else 1)
            self._experiment = None


class ExpertLogger(Logger):
    """Passes on what is logged of one of several experts, under the names of a run of its own."""

    def __init__(self, logger: Logger, prefix: str, between: str, is_trained: Callable[[], bool]) -> None:
        """prefix: of the expert's figures.  between: in the names of all experts' figures.

        is_trained: whether the expert is still trained; if not, lightning repeats its last figures.
        """
        super().__init__()
        self.logger, self.prefix, self.between, self.is_trained = logger, prefix, between, is_trained

    @property
    def name(self) -> str | None:
        return self.logger.name

    @property
    def version(self) -> int | str | None:
        return self.logger.version

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Log nothing: `build_loggers` has logged the settings."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Log the expert's figures, if there are any, and those that have no expert."""
        figures = {
            key.removeprefix(self.prefix): value for key, value in metrics.items() if key.startswith(self.prefix)
        }
        if figures and self.is_trained():
            shared = {key: value for key, value in metrics.items() if self.between not in key}
            self.logger.log_metrics(figures | shared, step)

    def save(self) -> None:
        self.logger.save()

    def finalize(self, status: str) -> None:
        self.logger.finalize(status)


def settings_of(config: TrainerConfig) -> dict[str, Any]:
    """The settings that are recorded with a drafter.

    Left out: where it is computed; where it is logged, which may hold a password; what changes no result; `ADDED` at
    their defaults.
    """
    left_out = {*DESTINATIONS, *DEVICES, *UNCOMPARED["trainer"]}
    settings = {key: value for key, value in asdict(config).items() if key not in left_out}
    return {key: value for key, value in settings.items() if ADDED.get(key, ...) != value}


def require_loggers(config: TrainerConfig) -> None:
    """Refuse loggers whose packages are not installed."""
    for name in EXTRAS:
        if name in config.loggers and find_spec(name) is None:
            raise ConfigError(
                f'trainer.loggers names {name}, which is not installed; type pip install "drafterforge[{name}]"'
            )


def build_loggers(config: TrainerConfig, folder: Path, first_step: int) -> list[Logger]:
    """Loggers under `folder`/logs; CSV and TensorBoard drop what an interrupted run logged from `first_step` on."""
    require_loggers(config)
    return [_build(name, config, folder, first_step) for name in config.loggers]


def _build(name: str, config: TrainerConfig, folder: Path, first_step: int) -> Logger:
    if name == "csv":
        return ResumedCSVLogger(folder, name, first_step)
    if name == "tensorboard":
        return TensorBoardLogger(str(folder), name=LOGS, version=name, purge_step=first_step or None)
    try:
        logger = _wandb(config, folder) if name == "wandb" else _mlflow(config, folder)
        logger.log_hyperparams(settings_of(config))  # starts the run
    except Exception as error:  # many kinds: no login, no such server, no database driver
        reason = " ".join(str(error).split())[:600] or type(error).__name__
        raise ConfigError(f"trainer.loggers: {name} did not start ({reason})") from error
    return logger


def _wandb(config: TrainerConfig, folder: Path) -> Logger:
    (folder / LOGS).mkdir(parents=True, exist_ok=True)  # wandb adds a folder of its own name
    if config.wandb_mode != "online":
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # uses the network even offline
    quiet = {"silent": True, "console": "off"}
    return EndedWandbLogger(
        name=run_name(folder), project=config.project, save_dir=folder / LOGS, mode=config.wandb_mode, settings=quiet
    )


def _mlflow(config: TrainerConfig, folder: Path) -> Logger:
    uri = config.mlflow_uri or f"file:{folder.resolve() / LOGS / 'mlflow'}"
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # uses the network, whatever the uri
    if uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 prefers databases, which take seconds
    return MLFlowLogger(config.project, run_name=run_name(folder), tracking_uri=uri)


def run_name(folder: Path) -> str:
    """The artifact's name, given its folder or its staging folder."""
    return folder.resolve().name.removeprefix(".").removesuffix(".partial")


def keep_logs(staging: Path, folder: Path) -> None:
    """Copy the logs, without the links that wandb makes to its newest run."""
    if (staging / LOGS).exists():
        shutil.copytree(staging / LOGS, folder / LOGS, ignore=_links)


def _links(parent: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(parent) / name).is_symlink()]
