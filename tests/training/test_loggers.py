"""Loggers by config: they receive every metric without a network, and a missing package is one line."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location

import pytest
from lightning.pytorch.loggers import CSVLogger

from drafterforge.artifacts.staging import drop_staging, open_staging
from drafterforge.config.trainer import TrainerConfig
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.training import loggers
from drafterforge.training.loggers import build_loggers, keep_logs, require_loggers, settings_of
from tests.training.runs import SHORT, Run

VALIDATED = [3, 6, 9]


def train_curve(folder, **changes):
    """The curve of a training, which equals what its loggers received at validations."""
    checkpoint = Run(folder / ".sql.partial", replace(SHORT, **changes))()
    assert [point["step"] for point in checkpoint.curve] == VALIDATED
    return [point["val/accept_length"] for point in checkpoint.curve]


@pytest.mark.slow
def test_mlflow_receives_every_metric(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    curve = train_curve(tmp_path, loggers=["csv", "mlflow"], project="drafts")
    client = mlflow.MlflowClient(f"file:{tmp_path / '.sql.partial' / 'logs' / 'mlflow'}")
    (experiment,) = (candidate for candidate in client.search_experiments() if candidate.name == "drafts")
    (run,) = client.search_runs([experiment.experiment_id])
    assert "mlflow_uri" not in run.data.params
    assert (run.info.run_name, run.info.status) == ("sql", "FINISHED")
    assert float(run.data.params["lr"]) == SHORT.lr and run.data.params["ttt_steps"] == "2"
    history = client.get_metric_history(run.info.run_id, "val/accept_length")
    assert [metric.value for metric in history] == pytest.approx(curve)
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert len(losses) == SHORT.max_steps and all(metric.value > 0 for metric in losses)


def test_a_tracking_server_replaces_the_files(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    uri = f"file:{tmp_path / 'elsewhere'}"
    build_loggers(replace(SHORT, loggers=["mlflow"], mlflow_uri=uri), tmp_path / "sql", 0)[0].finalize("success")
    assert not (tmp_path / "sql" / "logs").exists()
    assert [experiment.name for experiment in mlflow.MlflowClient(uri).search_experiments()].count("drafterforge") == 1


@pytest.mark.slow
def test_an_offline_run_of_wandb_receives_every_metric(tmp_path):
    wandb = pytest.importorskip("wandb")
    curve = train_curve(tmp_path, loggers=["csv", "wandb"])
    assert wandb.run is None  # it has ended
    (file,) = (tmp_path / ".sql.partial" / "logs" / "wandb").glob("offline-run-*/*.wandb")
    content = file.read_bytes()
    for key in (b"val/accept_length", b"train/loss", b"trainer/global_step", b"ttt_steps"):
        assert key in content
    assert all(f"{value:.6g}"[:6].encode() in content for value in curve)
    assert SHORT.wandb_mode == "offline"


def test_links_of_wandb_are_not_copied(tmp_path):
    logs = tmp_path / "staging" / "logs" / "wandb"
    (logs / "offline-run-1").mkdir(parents=True)
    (logs / "offline-run-1" / "run.wandb").write_text("x")
    (logs / "latest-run").symlink_to(logs / "offline-run-1")
    (logs / "debug.log").symlink_to(logs / "nowhere")
    keep_logs(tmp_path / "staging", tmp_path / "sql")
    paths = sorted(path.relative_to(tmp_path / "sql").as_posix() for path in (tmp_path / "sql").rglob("*"))
    assert paths == ["logs", "logs/wandb", "logs/wandb/offline-run-1", "logs/wandb/offline-run-1/run.wandb"]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_one_line_with_what_to_type(monkeypatch, name):
    monkeypatch.setattr(loggers, "find_spec", lambda package: None)
    with pytest.raises(ConfigError) as caught:
        require_loggers(TrainerConfig(loggers=["csv", name]))
    assert str(caught.value) == (
        f'trainer.loggers names {name}, which is not installed; type pip install "drafterforge[{name}]"'
    )
    require_loggers(TrainerConfig())


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_logger_that_does_not_start_is_one_line(monkeypatch, tmp_path, name):
    class Broken(CSVLogger):
        def __init__(self, *args, **options):
            raise OSError("no such\nserver")

    monkeypatch.setattr(loggers, "find_spec", lambda package: object())
    for logger in ("EndedWandbLogger", "MLFlowLogger"):
        monkeypatch.setattr(loggers, logger, Broken)
    with pytest.raises(ConfigError, match=rf"trainer\.loggers: {name} did not start \(no such server\)"):
        build_loggers(TrainerConfig(loggers=[name]), tmp_path, 0)


def test_an_unknown_logger_is_one_line():
    with pytest.raises(ConfigError, match="must be one of csv, tensorboard, wandb, mlflow, got 'wandbb'"):
        TrainerConfig(loggers=["wandbb"])
    with pytest.raises(ConfigError, match="must be one of offline, online, disabled, got 'off'"):
        TrainerConfig(wandb_mode="off")


def run(code: str, *arguments: object) -> str:
    """The output of a program in another process."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_packages_of_other_loggers_are_not_imported(tmp_path, monkeypatch):
    imported: list[str] = []

    class Spy:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            imported.append(name.partition(".")[0])

    for name in {"wandb", "mlflow"} & sys.modules.keys():  # of earlier tests
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Spy, *sys.meta_path])
    spec = spec_from_file_location("fresh_loggers", loggers.__file__)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.build_loggers(TrainerConfig(), tmp_path, 0)
    assert not {"wandb", "mlflow"} & {*imported}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_loggers_use_no_network(tmp_path, name):
    pytest.importorskip(name)
    code = """
import socket, sys
look_up = socket.getaddrinfo
def spy(host, *rest, **options):
    print("asked", host, flush=True)
    return look_up(host, *rest, **options)
socket.getaddrinfo = spy
from pathlib import Path
from drafterforge.artifacts.staging import drop_staging, open_staging
from drafterforge.config.trainer import TrainerConfig
from drafterforge.training.loggers import build_loggers
(logger,) = build_loggers(TrainerConfig(loggers=[sys.argv[2]]), Path(sys.argv[1]), 0)
logger.log_metrics({"a": 1.0}, step=1)
logger.finalize("success")
"""
    assert run(code, tmp_path, name) == ""


def test_unfinished_work_goes_on_with_other_loggers_and_memory_settings(tmp_path):
    path, config = tmp_path / "sql", settings_of(TrainerConfig())
    earlier = config | {"loggers": ["csv"], "log_every": 1, "loss_chunk": 64, "checkpoint_steps": False}
    folder = open_staging(path, {"config": {"trainer": earlier}})  # as earlier versions recorded it
    (folder / "last.ckpt").write_bytes(b"state")
    assert settings_of(TrainerConfig(loggers=["tensorboard"], log_every=7, loss_chunk=9)) == config
    open_staging(path, {"config": {"trainer": config}}, replace=False)
    with pytest.raises(ArtifactError, match="unfinished work of other settings"):
        open_staging(path, {"config": {"trainer": config | {"lr": 1.0}}}, replace=False)
    assert (folder / "last.ckpt").exists()
    drop_staging(path)
