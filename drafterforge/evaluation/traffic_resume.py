"""Replays of traffic with single seeds that an interrupted command has finished, or left in the middle."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from drafterforge.artifacts.atomic import is_locked
from drafterforge.artifacts.learned import FOLDER, LearnedRecord, LearnedVersion, delete_learned, learner_lock
from drafterforge.config.learn import LearnCommandConfig
from drafterforge.data.served import served_shards
from drafterforge.data.stream import RECORD, erase_stream
from drafterforge.evaluation.lossless import Mismatch
from drafterforge.evaluation.measurements import Measurement, RequestInfo, load_measurements, save_measurements
from drafterforge.evaluation.resume_cache import ResumeCache
from drafterforge.evaluation.traffic_replay import ReplayedTraffic
from drafterforge.runtime.rows import Generation


def measurements_of(traffic: ReplayedTraffic) -> list[Measurement]:
    """The answers of every method, for `cycles.parquet`."""
    seed: dict[str, Any] = {"axis": "seed", "at": traffic.seed}
    return [
        Measurement(name, [RequestInfo(number, "")], [answer], answer.time_s["total"], group=number, **seed)
        for name, answers in traffic.answers.items()
        for number, answer in enumerate(answers)
    ]


def save_replay(cache: ResumeCache, traffic: ReplayedTraffic) -> None:
    """Save a finished replay with one seed."""
    name = f"seed-{traffic.seed}"
    save_measurements(cache.folder / f"{name}.parquet", measurements_of(traffic))
    learned = [[number, asdict(version)] for number, version in traffic.learned]
    cache.save_facts(name, {"mismatches": [mismatch.as_dict() for mismatch in traffic.mismatches], "learned": learned})


def load_replay(cache: ResumeCache, seed: int, prompts: Sequence[list[int]]) -> ReplayedTraffic | None:
    """The replay of these prompts with this seed; None if none was finished."""
    if not (facts := cache.facts(name := f"seed-{seed}")):
        return None
    answers: dict[str, list[Generation]] = {}
    for measurement in load_measurements(cache.folder / f"{name}.parquet"):
        of_method = answers.setdefault(measurement.method, [])
        of_method.append(replace(measurement.answers[0], prompt=prompts[len(of_method)]))
    mismatches = [Mismatch(**entry) for entry in facts["mismatches"]]
    learned = [(number, LearnedVersion(**entry)) for number, entry in facts["learned"]]
    return ReplayedTraffic(seed, answers, mismatches, learned)


def delete_interrupted(cfg: LearnCommandConfig, run: str) -> None:
    """Delete what an interrupted replay has recorded and learned; nothing if there is more in the folder of traffic.

    run: see `AnswerLog`.
    """
    folder = cfg.traffic_dir
    if not is_left_by(run, folder):
        return
    record = LearnedRecord.read(folder)
    names = record.absent | {version.name for version in record.versions}
    delete_learned(cfg.runs_dir, cfg.target.folder_name, names)
    erase_stream(folder)
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    (folder / RECORD).unlink(missing_ok=True)


def is_left_by(run: str, folder: Path) -> bool:
    """Whether all answers in a folder of traffic are of a run that has ended.

    run: see `AnswerLog`; empty: no answer is.
    """
    if is_locked(folder) or is_locked(learner_lock(folder)):
        return False
    return all(run and row.id.startswith(f"{run}-") for _, rows in served_shards(folder) for row in rows)
