"""Times the steps of a command; seconds are saved, so that a resumed run adds to them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.json_input import read_json
from drafterforge.config.progress import say


class StepClock:
    """Seconds of each step, including those of interrupted runs."""

    def __init__(self, command: str, steps: Sequence[str], path: Path, began: float) -> None:
        """began: by `time.perf_counter`."""
        self.command, self.steps, self.path, self.began = command, steps, path, began
        self.seconds: dict[str, float] = read_json(path) if path.is_file() else {}

    @property
    def total(self) -> float:
        return round(sum(self.seconds.values()), 2)

    def done(self, step: str, outcome: str) -> None:
        """Print the outcome of a step and its seconds since the previous step."""
        now = time.perf_counter()
        spent, self.began = now - self.began, now
        self.seconds[step] = round(self.seconds.get(step, 0.0) + spent, 2)
        save_json_atomic(self.path, self.seconds)
        number = self.steps.index(step) + 1
        say(f"{self.command}, {number} of {len(self.steps)}, {step}: {outcome} ({spent:.0f} s)")
