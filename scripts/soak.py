"""Whether a server stays up: mixed requests for a long time, compared with the same requests alone.

    python scripts/soak.py [--minutes 30] [--clients 8] [--json PATH] [KEY=VALUE ...]

Starts `drafterforge serve drafter=pool` with a key; KEY=VALUE are further settings.  First every request of a list is
sent alone.  Then clients send them at random, in bursts: streams that are read slowly or left, answers that nobody
waits for, wrong keys, malformed bodies.  At the end the queue must drain, and the server gets SIGTERM under load.

Figures:
    requests             requests in all, of so many `distinct` ones
    answers              complete answers, which are compared
    differing            answers that differ from the same request alone
    failures             requests without the answer or the status that they must get
    queue_full           requests that were refused with status 429, because the queue was full
    first_token_p50_ms   time to the first token of a stream, also p95 and p99
    token_gap_p50_ms     time between two parts of a stream, also p95 and p99
    memory_mb            resident memory of the server in the third tenth of the time
    memory_growth        of the last tenth of the time against the third one, as a share; until caches have met their
                         largest batch, memory grows
    memory_late_growth   the same against the sixth tenth, when it should not
    drain_s              time until no answer waits or runs after the last request
    accepted_at_sigterm  answers under way when the server gets SIGTERM
    lost_at_sigterm      those of them that are not complete or differ
    exit_code            of the server
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import torch
from bench_record import save_record
from rich.console import Console
from rich.table import Table

DISTINCT = 40  # requests of the list
START_S = 300.0  # longest time until a server answers
LONGEST_S = 300.0  # longest time for an answer
TENTHS = 10  # parts of the time; memory is the median of each
WARM, MIDDLE = 2, 5  # the tenths that the last one is compared with
BURST_S = 10.0  # from one burst to the next one
KINDS = {"answer": 6, "stream": 6, "slow": 1, "leave": 1, "hang up": 1, "key": 1, "malformed": 1}  # how often
TOPICS = ("users of a shop", "the moons of Jupiter", "a list of words", "fractions", "iron in blood", "a short story")
Request = dict[str, Any]
console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)


def requests_of(model: str, seed: int, longest: int = 300, most_tokens: int = 96) -> list[Request]:
    """Distinct requests: short and long prompts and answers, greedy and sampled, with stop strings.

    longest: words of a prompt.
    """
    chance, requests = random.Random(seed), []
    for number in range(DISTINCT):
        words = chance.choice((0, 8, 40, longest))
        text = f"{number}. Write about {chance.choice(TOPICS)}." + " Think of this: count all of them." * (words // 7)
        request: Request = {"model": model, "max_tokens": chance.choice((1, 8, 32, most_tokens)), "seed": number}
        request["temperature"] = chance.choice((0.0, 0.0, 0.7, 1.0))
        if chance.random() < 0.3:
            request["stop"] = [chance.choice((".", "\n\n", " the ", "xyzzy"))]
        if chance.random() < 0.5:
            request["messages"] = [{"role": "user", "content": text}]
        else:
            request["prompt"] = text
        requests.append(request)
    return requests


@dataclass
class Tally:
    """What clients have seen."""

    counts: Counter[str] = field(default_factory=Counter)
    first_token_s: list[float] = field(default_factory=list)
    token_gap_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def fail(self, kind: str, text: str) -> None:
        """Count a failure."""
        self.counts[kind] += 1
        if len(self.problems) < 20:
            self.problems.append(f"{kind}: {text}")


class Clients:
    """Clients of a server, and the answers to expect."""

    def __init__(self, url: str, key: str, requests: Sequence[Request]) -> None:
        self.url, self.requests, self.tally = url, requests, Tally()
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.expected: dict[int, str] = {}

    def path(self, request: Request) -> str:
        return f"{self.url}/v1/chat/completions" if "messages" in request else f"{self.url}/v1/completions"

    def alone(self, number: int) -> str:
        """The text of an answer when nothing else runs."""
        with httpx.Client(timeout=LONGEST_S, headers=self.headers) as client:
            answer = client.post(self.path(self.requests[number]), json=self.requests[number])
            answer.raise_for_status()
            return text_of(answer.json()["choices"][0])

    def learn(self) -> None:
        """Send every request alone."""
        self.expected = {number: self.alone(number) for number in range(len(self.requests))}

    def run(self, until: float, seed: int, most: int = sys.maxsize) -> None:
        """Send requests at random until the time is over."""
        chance = random.Random(seed)
        with httpx.Client(timeout=LONGEST_S, headers=self.headers) as client:
            while time.monotonic() < until and most > 0:
                most -= 1
                self.tally.counts["requests"] += 1
                try:
                    self.act(client, chance)
                except Exception as error:
                    self.tally.fail("failures", f"{type(error).__name__}: {error}")
                if time.monotonic() % BURST_S > BURST_S / 2:  # the clients pause, and begin together
                    time.sleep(chance.uniform(0, 0.5))

    def act(self, client: httpx.Client, chance: random.Random) -> None:
        """Send one request, of a random kind."""
        number = chance.randrange(len(self.requests))
        (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
        request = self.requests[number]
        if kind == "answer":
            response = client.post(self.path(request), json=request)
            if self.is_answered(response):
                self.compare(number, text_of(response.json()["choices"][0]))
        elif kind in ("stream", "slow", "leave"):
            self.stream(client, number, pause_s=0.05 if kind == "slow" else 0.0, leave=kind == "leave")
        elif kind == "hang up":
            with httpx.Client(timeout=chance.uniform(0.01, 0.5), headers=self.headers) as impatient:
                try:
                    impatient.post(self.path(request), json=request)
                except httpx.TimeoutException:
                    self.tally.counts["left"] += 1
        elif kind == "key" and self.headers:
            self.require(client.post(self.path(request), json=request, headers={"Authorization": "Bearer no"}), 401)
        else:
            self.require(client.post(self.path(request), json={**request, "max_tokens": -1}), 400)

    def stream(self, client: httpx.Client, number: int, pause_s: float = 0.0, leave: bool = False) -> None:
        """Read a stream, slowly or in part, and compare it."""
        request, began, text, last = {**self.requests[number], "stream": True}, time.perf_counter(), "", 0.0
        with client.stream("POST", self.path(request), json=request) as response:
            if not self.is_answered(response):
                return
            for part in parts_of(response):
                now = time.perf_counter()
                if not pause_s:
                    times = self.tally.token_gap_s if last else self.tally.first_token_s
                    times.append(now - (last or began))
                last, text = now, text + part
                if leave:
                    self.tally.counts["left"] += 1
                    return
                time.sleep(pause_s)
        self.compare(number, text)

    def is_answered(self, response: httpx.Response) -> bool:
        """Whether the server accepted a request; a full queue is no failure."""
        if response.status_code == 429:
            self.tally.counts["queue_full"] += 1
            time.sleep(0.5)
            return False
        return self.require(response, 200)

    def require(self, response: httpx.Response, status: int) -> bool:
        """Count a failure unless the response has this status."""
        if response.status_code == status:
            return True
        self.tally.fail("failures", f"status {response.status_code}, expected {status}: {response.read()[:200]!r}")
        return False

    def compare(self, number: int, text: str) -> None:
        """Count an answer, and whether it differs."""
        self.tally.counts["answers"] += 1
        if text != self.expected[number]:
            self.tally.fail("differing", f"request {number}: {text[:80]!r}, alone {self.expected[number][:80]!r}")

    def running(self) -> int:
        """Answers that wait or run."""
        lines = httpx.get(f"{self.url}/metrics", headers=self.headers).text.splitlines()
        names = ("drafterforge_answers_waiting ", "drafterforge_answers_running ")
        return int(sum(float(line.split()[1]) for line in lines if line.startswith(names)))


def text_of(choice: dict[str, Any]) -> str:
    """The text of a choice of either kind of answer."""
    return choice["message"]["content"] if "message" in choice else choice["text"]


def parts_of(response: httpx.Response) -> Iterator[str]:
    """The parts of a stream that hold text; an error in it raises."""
    ended = False
    for line in response.iter_lines():
        if line == "data: [DONE]":
            ended = True
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"])
            for choice in event["choices"]:
                part = choice["delta"].get("content") if "delta" in choice else choice["text"]
                if part:
                    yield part
    if not ended:
        raise RuntimeError("the stream ended early")


@contextmanager
def server_of(settings: Sequence[str]) -> Iterator[tuple[subprocess.Popen, str, str]]:
    """Start a server; yields its process, URL and key."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    key = secrets.token_hex(16)
    command = [
        sys.executable,
        "-m",
        "drafterforge",
        "serve",
        "drafter=pool",
        f"port={port}",
        f"grace_s={LONGEST_S:g}",
        *settings,
    ]
    process = subprocess.Popen(command, env=os.environ | {"DRAFTERFORGE_API_KEY": key})
    url = f"http://127.0.0.1:{port}"
    try:
        limit = time.monotonic() + START_S
        while True:
            try:
                httpx.get(f"{url}/health").raise_for_status()
                break
            except httpx.HTTPError:
                if process.poll() is not None or time.monotonic() > limit:
                    raise
                time.sleep(0.2)
        yield process, url, key
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def soak(clients: Clients, minutes: float, count: int, pid: int) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Let the clients send requests for some minutes; returns the figures, and the memory in each tenth of the time.

    pid: of the server.
    """
    clients.learn()
    began, seconds = time.monotonic(), 60 * minutes
    threads = [threading.Thread(target=clients.run, args=(began + seconds, seed)) for seed in range(count)]
    for thread in threads:
        thread.start()
    samples: list[tuple[float, int]] = []
    process = psutil.Process(pid)
    while any(thread.is_alive() for thread in threads):
        samples.append(((time.monotonic() - began) / seconds, process.memory_info().rss))
        time.sleep(min(1.0, seconds / 100))
    ended = time.monotonic()
    while clients.running() and time.monotonic() - ended < LONGEST_S:
        time.sleep(0.02)
    drain_s = time.monotonic() - ended
    memory = [float(np.median([size for at, size in samples if int(TENTHS * at) == tenth])) for tenth in range(TENTHS)]
    tally = clients.tally
    figures: dict[str, float] = {"distinct": len(clients.requests), "minutes": minutes, "clients": count}
    figures |= {
        name: tally.counts[name] for name in ("requests", "answers", "differing", "failures", "queue_full", "left")
    }
    for name, values in (("first_token", tally.first_token_s), ("token_gap", tally.token_gap_s)):
        figures |= {f"{name}_p{p}_ms": round(1e3 * float(np.percentile(values or [0.0], p)), 1) for p in (50, 95, 99)}
    figures |= {"memory_mb": round(memory[WARM] / 2**20, 1), "memory_growth": round(memory[-1] / memory[WARM] - 1, 5)}
    figures |= {"memory_late_growth": round(memory[-1] / memory[MIDDLE] - 1, 5), "drain_s": round(drain_s, 2)}
    return figures, [{"tenth": tenth, "memory_mb": round(size / 2**20, 1)} for tenth, size in enumerate(memory)]


def terminate(clients: Clients, process: subprocess.Popen, count: int) -> dict[str, float]:
    """Send SIGTERM while streams run; every answer that began must end."""
    began = threading.Barrier(count + 1)
    lost: list[str] = []
    longest = sorted(clients.expected, key=lambda number: -len(clients.expected[number]))[:count]

    def read(number: int) -> None:
        request, text = {**clients.requests[number], "stream": True}, ""
        try:
            with (
                httpx.Client(timeout=LONGEST_S, headers=clients.headers) as client,
                client.stream("POST", clients.path(request), json=request) as response,
            ):
                response.raise_for_status()
                began.wait(LONGEST_S)
                text = "".join(parts_of(response))
        except Exception as error:
            began.abort()
            text = f"{type(error).__name__}: {error}"
        if text != clients.expected[number]:
            lost.append(f"{number}: {text[:100]!r}")

    threads = [threading.Thread(target=read, args=(number,)) for number in longest]
    for thread in threads:
        thread.start()
    began.wait(LONGEST_S)
    process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    clients.tally.problems += lost
    code = process.wait(LONGEST_S)
    return {"accepted_at_sigterm": len(longest), "lost_at_sigterm": len(lost), "exit_code": code}


def main() -> int:
    """Run the soak; the exit code is 1 if an answer was lost or changed, or memory grew by 2 % in the second half."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, metavar="N", help="time of the mixed requests")
    parser.add_argument("--clients", type=int, default=8, metavar="N", help="clients that send at the same time")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the requests")
    parser.add_argument("--model", default="smollm2-135m", metavar="NAME", help="name of the target")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report here")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of `drafterforge serve`")
    options = parser.parse_args()
    with server_of(options.settings) as (process, url, key):
        clients = Clients(url, key, requests_of(options.model, options.seed))
        figures, rows = soak(clients, options.minutes, options.clients, process.pid)
        figures |= terminate(clients, process, options.clients)
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:g}")
    console.print(table)
    for problem in clients.tally.problems:
        console.print(problem, markup=False)
    if options.json:
        save_record(options.json, "soak", torch.device("cpu"), "bfloat16", figures, rows)
    bad = ("differing", "failures", "lost_at_sigterm", "exit_code")
    return int(any(figures[name] for name in bad) or figures["memory_late_growth"] >= 0.02)


if __name__ == "__main__":
    sys.exit(main())
