"""A server that records its traffic is killed while it answers: what it has recorded stays readable."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx

from drafterforge.data.served import served_rows
from drafterforge.data.stream import StreamRecord
from drafterforge.errors import DrafterforgeError
from tests.faults import harness
from tests.faults.faults import Outcome
from tests.faults.harness import Bench, Command

START_S = 120.0  # longest time until the server answers
LEARNING = ("drafter=sql", "learn=on", "learn.train=false", "learn.ring_gb=0.0005")


class Server:
    """A server in a forked process."""

    def __init__(self, bench: Bench, runs: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        command = Command("serve", ("serve", f"port={self.port}", *LEARNING), ())
        self.process = harness.start(command, bench.options, runs, None)

    def ask(self, wait_s: float = START_S) -> list[int] | None:
        """The token ids of an answer; None if the server has ended."""
        fields = {"model": "tiny", "prompt": "again and again", "temperature": 0, "max_tokens": 12}
        limit = time.monotonic() + wait_s
        while time.monotonic() < limit:
            with suppress(httpx.HTTPError):
                url = f"http://127.0.0.1:{self.port}/v1/completions"
                answer = httpx.post(url, json=fields | {"return_token_ids": True}, timeout=60)
                return answer.json()["choices"][0]["token_ids"]
            time.sleep(0.02)
        return None

    def end(self, number: int) -> harness.Ending:
        """Send a signal and wait."""
        os.kill(self.process.child, number)
        return self.process.finish()


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


def _problems(folder: Path) -> list[str]:
    """What cannot be read of the recorded traffic."""
    try:
        record = StreamRecord.read(folder)
        rows = [*served_rows(folder)] if record is not None and record.answers else []
    except DrafterforgeError as error:
        return [f"half: {error}"]
    return [f"half: an answer of {len(row.transcript.ids)} tokens" for row in rows if len(row.transcript.ids) <= 12]
