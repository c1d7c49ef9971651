"""What recording of answers costs a cycle, and how long tokens take while a learner works beside the server.

    python scripts/bench_learning.py [--answers 96] [--json PATH]

Answers are decoded one at a time with the shipped default, in turns with recording (target's outputs of each token,
ring and memory) and without.  Then a learner trains on them in a process of its own, as `serve learn=on` starts it, and
answers are decoded in turns while it works and while it is stopped.

Figures:
    recording_share          seconds that recording takes in all threads, over those of decoding
    recording_over_off       seconds of the same answers with recording over those without, in turns
    p95_ms, p95_learning_ms  95th percentile of the seconds of a cycle without and beside a learner's work
    p95_learning_over_alone  the second over the first
    mean_learning_over_alone the same of means
    cores                    of this machine; the learner uses one, when nothing else wants it
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import drafterforge
from drafterforge.artifacts.learned import LearnedRecord
from drafterforge.config.learn import LearnConfig
from drafterforge.evaluation.held_out import held_out_prompts
from drafterforge.runtime.answer_log import AnswerLog
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.row_outputs import RowOutputs
from drafterforge.runtime.rows import Row
from drafterforge.server.learning import LearnerProcess

import numpy as np
import torch
from bench_record import save_record

DOMAIN = ("sql",)  # of the answers, so that the learner has enough of one kind
LEARNED_S = 20.0  # after which the learner has started to train
FOLLOWED = ("min_answers=48", "held_out=8", "steps=100000")


class TimedOutputs(RowOutputs):
    """Recorded outputs that count the seconds of recording."""

    seconds = 0.0

    def add(self, features: torch.Tensor, states: torch.Tensor) -> None:
        """See `RowOutputs`."""
        began = time.perf_counter()
        super().add(features, states)
        TimedOutputs.seconds += time.perf_counter() - began


@torch.inference_mode()
def decode(engine: Engine, prompt: list[int], max_new_tokens: int, records: bool) -> tuple[Row, list[float], float]:
    """An answer, the waits between its deliveries, and the seconds in all."""
    began = time.perf_counter()
    tokens, rule = engine.read(prompt, max_new_tokens)
    batch = engine.open_batch()
    joining = batch.begin(tokens, rule, outputs=TimedOutputs() if records else None)
    while not batch.advance(joining):
        pass
    moments = [time.perf_counter()]
    while batch.rows:
        batch.cycle(engine.shape)
        moments.append(time.perf_counter())
    return joining.row, [later - sooner for sooner, later in pairwise(moments)], moments[-1] - began


def recording(engine: Engine, answers: AnswerLog, prompts: list[list[int]], max_new_tokens: int) -> dict[str, float]:
    """Figures of recording all answers."""
    seconds, adding = {True: 0.0, False: 0.0}, 0.0
    TimedOutputs.seconds = 0.0
    for number, prompt in enumerate(prompts):
        for records in (True, False) if number % 2 else (False, True):
            row, _, spent = decode(engine, prompt, max_new_tokens, records)
            seconds[records] += spent
            if records:
                began = time.perf_counter()
                answers.add(row, answers.num_erasures)
                adding += time.perf_counter() - began
    return {
        "recording_share": (TimedOutputs.seconds + adding) / seconds[True],
        "recording_over_off": (seconds[True] + adding) / seconds[False],
    }


def beside_a_learner(engine: Engine, prompts: list[list[int]], max_new_tokens: int, folder: Path) -> dict[str, float]:
    """Figures of waits with and without a learner's work."""
    keys = [f"learn.{setting}" for setting in FOLLOWED]
    runs = folder.parent / "runs"
    learner = LearnerProcess(["learn", "run", f"learn.folder={folder}", f"runs_dir={runs}", *keys], folder)
    waits: dict[bool, list[float]] = {True: [], False: []}
    try:
        learner.watch()
        wait_for_training(learner, runs)
        for number, prompt in enumerate(prompts):
            for works in (True, False) if number % 2 else (False, True):
                os.killpg(learner.process.pid, signal.SIGCONT if works else signal.SIGSTOP)
                waits[works] += decode(engine, prompt, max_new_tokens, records=True)[1]
                if learner.process.poll() is not None:
                    raise SystemExit(f"the learner has ended; see {learner.folder}")
                if not LearnedRecord.read(folder).training:
                    raise SystemExit(f"the round has ended after {number} answers; type a smaller --answers")
    finally:
        learner.stop()
    p95 = {works: float(np.percentile(gaps, 95)) for works, gaps in waits.items()}
    return {
        "p95_ms": 1e3 * p95[False],
        "p95_learning_ms": 1e3 * p95[True],
        "p95_learning_over_alone": p95[True] / p95[False],
        "mean_learning_over_alone": float(np.mean(waits[True]) / np.mean(waits[False])),
        "cores": float(os.cpu_count() or 1),
    }


def wait_for_training(learner: LearnerProcess, runs: Path) -> None:
    """Wait until the learner has written answers to train on, and has begun."""
    while not [*runs.glob("*/answers/*/manifest.json")]:
        if learner.process.poll() is not None:
            raise SystemExit(f"the learner has ended; see {learner.folder}")
        time.sleep(1.0)
    time.sleep(LEARNED_S)


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=96, help="prompts of each part")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="length limit of an answer, in tokens")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the figures here")
    options = parser.parse_args()
    engine = drafterforge.load("smollm2-135m").runtime
    prompts = held_out_prompts(engine.target, options.answers, DOMAIN)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "traffic"
        answers = AnswerLog(LearnConfig(record=True), folder, engine.target)
        figures = recording(engine, answers, prompts, options.max_new_tokens)
        answers.close()
        figures |= beside_a_learner(engine, prompts, options.max_new_tokens, folder)
    for name, value in figures.items():
        print(f"{name:26} {value:.4f}")
    if options.json:
        dtype = str(engine.target.dtype).removeprefix("torch.")
        save_record(options.json, "learning", engine.target.device, dtype, figures)


if __name__ == "__main__":
    sys.exit(main())
