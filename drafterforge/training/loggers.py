"""CSV and TensorBoard logs that a resumed run continues: every step appears once."""

from __future__ import annotations

import csv
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from drafterforge.schema import TrainerConfig


class ResumedCSVLogger(CSVLogger):
    """Keeps the rows that were logged before `first_step`, where Lightning's own would delete them."""

    def __init__(self, folder: Path, version: str, first_step: int) -> None:
        # a row is written when it is logged: a killed process has no chance to
        super().__init__(str(folder), name="logs", version=version, flush_logs_every_n_steps=1)
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
            whole = [row for row in csv.DictReader(file) if None not in row.values()]
        return [row for row in whole if row["step"].isdigit() and int(row["step"]) < self.first_step]


def build_loggers(config: TrainerConfig, folder: Path, first_step: int) -> list[Logger]:
    """CSV and TensorBoard loggers under `folder`/logs; what an interrupted run logged from `first_step` on goes."""
    loggers: list[Logger] = []
    for name in config.loggers:
        if name == "csv":
            loggers.append(ResumedCSVLogger(folder, name, first_step))
        else:
            loggers.append(TensorBoardLogger(str(folder), name="logs", version=name, purge_step=first_step or None))
    return loggers
