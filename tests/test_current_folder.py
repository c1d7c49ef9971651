"""Programs that are started import nothing from the current folder, which may be a stranger's."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from drafterforge.errors import ArtifactError
from drafterforge.server.learning import LearnerProcess
from drafterforge.targets import smollm2
from drafterforge.training import launch


def start_learner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = LearnerProcess(["--version"], folder)
    process.watch()
    assert process.process.wait() == 0


def start_rank(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(folder / "log", "w") as log:
        assert launch._start(["--version"], {"RANK": 1}, log).wait() == 0


def start_pip(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.run

    def run(command: list[str], **options) -> subprocess.CompletedProcess:
        done = real([*command[: command.index("pip") + 1], "--version"], **options)
        assert done.stdout.startswith("pip ")
        return done

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ArtifactError, match="could not download"):
        smollm2._fetch(folder)


@pytest.mark.parametrize("start", [start_learner, start_rank, start_pip])
def test_no_module_of_the_current_folder_is_run(tmp_path, monkeypatch, start: Callable[..., None]):
    for name in ("drafterforge.py", "pip.py", "hydra.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'boom')!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    start(tmp_path, monkeypatch)
    assert not (tmp_path / "boom").exists()
