"""One fault after another: a command is hindered, then typed again, and must leave what an uninterrupted run leaves."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults import harness
from tests.faults.harness import Bench, Command, Ending, Hinder

FAULTS = ("kill", "power", "signal", "disk", "limit", "read-only", "clock", "two")
INTERRUPTED = {0, 130, 143, -signal.SIGINT, -signal.SIGTERM}
MAX_CHAIN = 2  # most kills before a command may finish


@dataclass
class Outcome:
    """What a fault did, and what was wrong after it."""

    command: str
    fault: str
    moments: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def as_row(self) -> dict[str, Any]:
        """The row of a report."""
        return {"command": self.command, "fault": self.fault, "moments": self.moments, "wrong": self.wrong}


class Trials:
    """Faults at random moments of commands, whose uninterrupted runs are compared first."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.chance = bench, random.Random(seed)
        self.references: dict[str, tuple[Ending, dict[str, str]]] = {}

    def reference(self, command: Command) -> tuple[Ending, dict[str, str]]:
        """How an uninterrupted run ends, and the hashes of the files that are the same in two of them."""
        if command.name not in self.references:
            contents = []
            for _ in range(2):
                runs = self.bench.fresh()
                ending = self.bench.run(command, runs)
                assert ending.code == 0, ending.printed
                contents.append(harness.content(command, runs))
            first, second = contents
            self.references[command.name] = ending, {key: first[key] for key in first if first[key] == second.get(key)}
        return self.references[command.name]

    def run(self, command: Command, fault: str) -> Outcome:
        """Hinder the command, type it again, and compare."""
        reference, _ = self.reference(command)
        outcome, runs = Outcome(command.name, fault), self.bench.fresh()
        if fault == "two":
            for ending in self.bench.run_twice_at_once(command, runs):
                busy = "another drafterforge process is using" in ending.printed or "exists already" in ending.printed
                self._check(outcome, ending, {0, 2} if busy else {0})
        else:
            for _ in range(self.chance.randint(1, MAX_CHAIN) if fault == "kill" else 1):
                self._hinder(outcome, command, fault, reference, runs)
                outcome.wrong += [f"half: {name}" for name in harness.half_artifacts(runs)]
        again = self.bench.run(command, runs)
        if again.code and not (again.code == 2 and "exists already" in again.printed):  # `export` replaces nothing
            outcome.wrong.append(f"typed again, it ended with {again.code}: {again.printed[-400:]}")
        else:
            outcome.wrong += self._differences(command, runs)
        return outcome

    def _hinder(self, outcome: Outcome, command: Command, fault: str, reference: Ending, runs: harness.Path) -> None:
        hinder: Hinder | None = None
        after_s, number, codes = -1.0, 0, {0, 2}
        at_event = fault == "power" or (fault == "kill" and self.chance.random() < 0.5)
        if at_event:
            hinder, codes = harness.at_event(self.chance, reference.events, fault == "power"), {0, -signal.SIGKILL}
        elif fault in ("kill", "signal"):
            number = signal.SIGKILL if fault == "kill" else self.chance.choice((signal.SIGINT, signal.SIGTERM))
            after_s = self.chance.uniform(0.0, reference.seconds)
            codes = {0, -signal.SIGKILL} if fault == "kill" else INTERRUPTED
        elif fault == "disk":
            hinder = harness.full_disk(self.chance, reference.events)
        elif fault == "limit":
            hinder = harness.file_limit(self.chance)
        elif fault == "read-only":
            hinder = harness.read_only
        elif fault == "clock":
            hinder, codes = harness.jumping_clock(self.chance), {0}
        ending = self.bench.run(command, runs, hinder, after_s, number)
        outcome.moments.append(f"{ending.events} of {reference.events} changes, {ending.seconds:.2f} s: {ending.code}")
        self._check(outcome, ending, codes)

    def _check(self, outcome: Outcome, ending: Ending, codes: set[int]) -> None:
        finished = ending.code == 2 and "exists already" in ending.printed  # `export` replaces nothing
        if (ending.code not in codes and not finished) or not ending.is_one_line:
            outcome.wrong.append(f"ended with {ending.code}: {ending.printed[-1500:]}")

    def _differences(self, command: Command, runs: harness.Path) -> Iterator[str]:
        _, expected = self.reference(command)
        hashes = harness.content(command, runs)
        yield from (f"differs: {name}" for name, digest in expected.items() if hashes.get(name) != digest)
        yield from (f"half: {name}" for name in harness.half_artifacts(runs))
        yield from (f"left: {name}" for name in harness.leftovers(runs))


def run_all(trials: Trials, commands: Sequence[Command], kills: int, repeats: int) -> Iterator[Outcome]:
    """So many kills, commands taking turns, and so many of each further fault of each command."""
    for number in range(kills):
        yield trials.run(commands[number % len(commands)], "kill")
    for _ in range(repeats):
        for command in commands:
            yield from (trials.run(command, fault) for fault in FAULTS if fault != "kill")
