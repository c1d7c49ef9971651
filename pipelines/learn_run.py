"""Learn from what `serve learn=on` records, until a signal or the server ends the process."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from drafterforge.artifacts.learned import LEARNER, LearnedRecord, lock_learner, update_record
from drafterforge.config.learn import LearnCommandConfig
from drafterforge.config.progress import log
from drafterforge.data.stream import StreamRecord
from drafterforge.errors import DrafterforgeError
from drafterforge.kernels.devices import on_gpu
from drafterforge.pipelines.learn import describe
from drafterforge.pipelines.train_drafter import train
from drafterforge.targets.load import load_target
from drafterforge.training.launch import end_with_stdin
from drafterforge.training.traffic import TrafficLearner, spare_the_machine

Config = LearnCommandConfig
POLL_S = 5.0  # between two looks for new answers
RETRY_S = 300.0  # after a failed round


def run(cfg: Config) -> Path:
    """Learn with what the machine has to spare."""
    if LEARNER in os.environ:
        end_with_stdin()
    os.umask(0o077)  # the texts that a round trains on are not for other users of the machine
    lock_learner(cfg.traffic_dir)
    pace = spare_the_machine(cfg.learn.cpu_share)
    update_record(cfg.traffic_dir, lambda record: replace(record, min_answers=cfg.learn.min_answers))
    while StreamRecord.read(cfg.traffic_dir).answers < cfg.learn.min_answers:  # the target takes memory
        time.sleep(POLL_S)
    target = load_target(replace(cfg.target, device=cfg.learn.device))
    learner = TrafficLearner(cfg, target, train, cfg.learn.cpu_share if on_gpu(target.device) else pace)
    while True:
        try:
            if (version := learner.round()) is not None:
                log(f"learn: {describe(version)}")
            if LearnedRecord.read(cfg.traffic_dir).error:
                update_record(cfg.traffic_dir, lambda record: replace(record, error=""))
            time.sleep(POLL_S)
        except DrafterforgeError as error:
            update_record(cfg.traffic_dir, lambda record, text=str(error): replace(record, error=text))
            log(f"learn: {error}")
            time.sleep(RETRY_S)
