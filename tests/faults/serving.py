"""A server that learns from its traffic, or its learner, is killed: nothing is half-written, and learning goes on."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest import mock

import httpx

from drafterforge.artifacts.learned import LearnedRecord
from drafterforge.data.served import served_rows
from drafterforge.data.stream import StreamRecord
from drafterforge.errors import DrafterforgeError
from drafterforge.runtime import answer_log
from tests.faults import harness
from tests.faults.commands import SMOKE
from tests.faults.faults import Outcome
from tests.faults.harness import Bench, Command

START_S = 120.0  # longest time until the server answers
LEARNED_S = 240.0  # longest time until a round begins, or a learner that was not killed has judged an expert
RECORDING = ("drafter=sql", "learn=on", "learn.train=false", "learn.ring_gb=0.0005")
TRAINING = ("drafter=pool", "learn=on", "learn.min_answers=16", "learn.held_out=4", "learn.steps=4")
GENERALIST = Command("general", ("train-drafter", "domain=general", *SMOKE), ())


class Server:
    """A server in a forked process."""

    def __init__(self, bench: Bench, runs: Path, settings: Sequence[str] = RECORDING) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        command = Command("serve", ("serve", f"port={self.port}", *settings), ())
        self.process = harness.start(command, bench.options, runs, None)

    def ask(self, wait_s: float = START_S, prompt: str = "again and again") -> list[int] | None:
        """The token ids of an answer; None if the server has ended."""
        fields = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 12}
        limit = time.monotonic() + wait_s
        while time.monotonic() < limit:
            with suppress(httpx.HTTPError):
                url = f"http://127.0.0.1:{self.port}/v1/completions"
                answer = httpx.post(url, json=fields | {"return_token_ids": True}, timeout=60)
                return answer.json()["choices"][0]["token_ids"]
            time.sleep(0.02)
        return None

    @property
    def learner(self) -> int | None:
        """The id of the process that learns; None if none runs."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if int(path.read_text().rpartition(")")[2].split()[1]) == self.process.child:
                    return int(path.parent.name)
        return None

    def end(self, number: int) -> harness.Ending:
        """Send a signal and wait; a server may have run for longer than a command."""
        os.kill(self.process.child, number)
        return replace(self.process, began=time.monotonic()).finish()


def kill_server(bench: Bench, chance: random.Random) -> Outcome:
    """Kill a server that learns up to three times while it answers, then let one end in order."""
    outcome, runs, answers = Outcome("serve", "kill"), bench.fresh(), []
    folder = runs / "tiny" / "traffic"
    for _ in range(chance.randint(1, 3)):
        server = Server(bench, runs)
        answers += [server.ask() for _ in range(chance.randint(1, 12))]
        under_way = threading.Thread(target=server.ask, args=(0.1,))
        under_way.start()
        time.sleep(chance.uniform(0, 0.3))
        ending = server.end(signal.SIGKILL)
        under_way.join()
        outcome.moments.append(f"after {len(answers)} answers: {ending.code}")
        outcome.wrong += _problems(folder)
    server = Server(bench, runs)
    answers.append(server.ask())
    ending = server.end(signal.SIGTERM)
    if ending.code or not ending.is_one_line:
        outcome.wrong.append(f"ended with {ending.code}: {ending.printed[-400:]}")
    outcome.wrong += [f"differs: {answer}" for answer in answers if answer is None or answer != answers[0]]
    return Outcome("serve", "kill", outcome.moments, outcome.wrong + _problems(folder))


def _wait(holds: Callable[[], bool]) -> None:
    """Wait until something holds, for `LEARNED_S` at most."""
    limit = time.monotonic() + LEARNED_S
    while not holds() and time.monotonic() < limit:
        time.sleep(0.02)


def _runs(pid: int | None) -> bool:
    """Whether a process runs; one that has ended and that nobody waited for does not."""
    try:
        return pid is not None and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@mock.patch.object(answer_log, "FLUSH_S", 1.0)  # also in the processes that are forked meanwhile
def kill_learner(bench: Bench, chance: random.Random) -> Outcome:
    """Kill a learner, or the server that has started it, up to three times; then let a round end."""
    outcome, runs, answers = Outcome("learn", "kill"), bench.fresh(), dict[str, list[int] | None]()
    folder = runs / "tiny" / "traffic"
    assert bench.run(GENERALIST, runs).code == 0
    server = Server(bench, runs, TRAINING)

    def ask(number: int) -> None:
        prompt = f"Explain {number} to me."
        answer = server.ask(prompt=prompt)
        if answer is None or answer != answers.setdefault(prompt, answer):
            outcome.wrong.append(f"differs: {answer}")

    for kill in range(chance.randint(1, 3)):
        for number in range(30 * kill, 30 * kill + 30):
            ask(number)
        if in_round := chance.random() < 0.7:
            _wait(lambda: LearnedRecord.read(folder).training != "")
        time.sleep(chance.uniform(0, 1.5 if in_round else 4))  # a round takes about two seconds
        round_name, code, learner = LearnedRecord.read(folder).training, -signal.SIGKILL, server.learner
        kills_server = learner is None or chance.random() < 0.5
        if kills_server:
            code = server.end(signal.SIGKILL).code
            _wait(lambda pid=learner: not _runs(pid))
        else:
            os.kill(learner, signal.SIGKILL)
        outcome.moments.append(f"{'server' if kills_server else 'learner'}, round {round_name or 'none'}: {code}")
        outcome.wrong += [f"half: {path}" for path in harness.half_artifacts(runs)] + _problems(folder)
        server = Server(bench, runs, TRAINING) if kills_server else server
        ask(0)
    before = LearnedRecord.read(folder).num_versions
    for number in range(1000, 1030):
        ask(number)
    _wait(lambda: LearnedRecord.read(folder).num_versions > before)
    record = LearnedRecord.read(folder)
    if record.num_versions == before or record.error:
        outcome.wrong.append(f"learned nothing: {record.error}")
    ask(0)
    ending = server.end(signal.SIGTERM)
    if ending.code or not ending.is_one_line:
        outcome.wrong.append(f"ended with {ending.code}: {ending.printed[-400:]}")
    outcome.wrong += [f"half: {path}" for path in harness.half_artifacts(runs)] + _problems(folder)
    outcome.wrong += [f"left: {path}" for path in (runs / "tiny").glob("answers/*traffic-1*")]
    return outcome


def _problems(folder: Path) -> list[str]:
    """What cannot be read of the recorded traffic."""
    try:
        record = StreamRecord.read(folder)
        rows = [*served_rows(folder)] if record is not None and record.answers else []
    except DrafterforgeError as error:
        return [f"half: {error}"]
    return [f"half: an answer of {len(row.transcript.ids)} tokens" for row in rows if len(row.transcript.ids) <= 12]
