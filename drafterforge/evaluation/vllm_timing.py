"""Times servers of vLLM in turns, group of requests by group, and compares their greedy answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafterforge.config.evaluation import SuiteConfig
from drafterforge.config.progress import bar, say
from drafterforge.errors import ConfigError
from drafterforge.evaluation.lossless import Mismatch, first_difference
from drafterforge.evaluation.machine_load import MachineLoad
from drafterforge.evaluation.measurements import Measurement, RequestInfo
from drafterforge.evaluation.methods import Method, rotate
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.resume_cache import ResumeCache
from drafterforge.evaluation.scaling import BATCH_SIZE, TEMPERATURE
from drafterforge.evaluation.timing import WARM_UP, Decoded, TimingRun, measurement_of, samplings
from drafterforge.evaluation.vllm_engine import Counters
from drafterforge.runtime.rows import Generation

SETTLE_S = 1.5  # a pool writes its counters less than this after a cycle, see `INTERVAL_S` of its metrics


class ServerGroup:
    """The servers of an evaluation; all are stopped when the block ends, however it ends.

    A server is started when it is first needed.  together: all of them then run until the end, so that methods can take
    turns request by request, and nothing is loaded twice.  They are started one after the other, because a starting
    vLLM measures the free memory of a GPU.  Otherwise a server is stopped after use, for machines whose memory holds
    one at a time.
    """

    def __init__(self, methods: Sequence[Method], together: bool, start_s: float) -> None:
        """start_s: seconds that a server may take until it answers."""
        self.methods, self.together, self.start_s = methods, together, start_s
        self.servers = [method.engine.server for method in methods]

    def __enter__(self) -> ServerGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop all servers."""
        with contextlib.ExitStack() as stack:  # stops all, also if Ctrl-C interrupts one
            for server in self.servers:
                stack.callback(server.stop)
            for server in self.servers:
                server.terminate()

    @contextlib.contextmanager
    def running(self, method: Method) -> Iterator[None]:
        """A block in which the method's server runs."""
        if self.together:
            for server in self.servers:
                if server.process is None:
                    server.start(self.start_s)
            yield
            return
        try:
            method.engine.server.start(self.start_s)
            yield
        finally:
            method.engine.server.stop()

    def generate(self, prompts: Sequence[list[int]], max_new_tokens: int) -> list[Generation]:
        """Greedy answers of the server without a drafter, which is the first."""
        with self.running(self.methods[0]):
            return self.methods[0].engine.generate(prompts, max_new_tokens)

    @property
    def process_groups(self) -> list[int]:
        """The groups of processes that run."""
        return [server.process.pid for server in self.servers if server.process is not None]

    @property
    def logs(self) -> list[Path]:
        """Files of the servers' output; a server that was not started has none."""
        return [server.log for server in self.servers]

    @property
    def version(self) -> str:
        """The release of vLLM; empty before a server has answered."""
        return next((server.version for server in self.servers if server.version), "")


@dataclass(frozen=True)
class RequestGroup:
    """Requests that are sent at the same time."""

    run: TimingRun  # the temperature and number of requests at a time
    number: int  # among those of its run
    indices: tuple[int, ...]


class VllmTiming:
    """Times methods on groups of requests.

    In a round every method answers a share of the groups, in rotating order.  With all servers running a share is one
    group.  Otherwise there are `suite.rounds` shares, because each start of a server takes minutes.  A round is cached
    once all methods have finished it, so that a resumed run compares times of one session; beside it are the release of
    vLLM and what each drafter of a pool has drafted.
    """

    def __init__(self, servers: ServerGroup, requests: Sequence[Request], cache: ResumeCache) -> None:
        self.servers, self.requests, self.cache = servers, requests, cache
        self.counters: dict[str, Counters] = {}  # of each pool, over the timed requests
        self.versions: set[str] = set()  # of vLLM
        self.before: dict[str, Counters] = {}  # of each pool's server, when the requests of a round began
        self.sizes: list[RequestGroup] = []  # a group of each number of requests at a time

    def measure(self, groups: Sequence[RequestGroup], rounds: int) -> list[Measurement]:
        """Measurements of each method on the groups.  rounds: number of shares if one server runs at a time."""
        count = len(groups) if self.servers.together else min(rounds, len(groups))
        shares = [groups[number::count] for number in range(count)]
        self.sizes = [*{group.run.batch_size: group for group in reversed(groups)}.values()]
        measurements: list[Measurement] = []
        with bar("timing", len(groups)) as progress:
            for number, share in enumerate(shares):
                name = f"round-{number:05d}-of-{count}"
                measurements += self.cache.measurements(
                    name, lambda s=share, n=number, name=name: self._measure_round(s, n, name)
                )
                self._add(self.cache.facts(name))
                progress.advance(len(share))
        return measurements

    @property
    def version(self) -> str:
        """The release of vLLM; several if it was replaced between sessions; empty if no server has said it."""
        return " and ".join(sorted(self.versions))

    def _measure_round(self, share: Sequence[RequestGroup], number: int, name: str) -> list[Measurement]:
        by_method: dict[str, list[Measurement]] = {}
        counters: dict[str, Counters] = {}
        for method in rotate(self.servers.methods, number):
            with self.servers.running(method):
                self._warm_up(method)
                by_method[method.name] = [self._measure_group(method, group) for group in share]
                counters[method.name] = self._count(method)
        self.cache.save_facts(name, {"version": self.servers.version, "counters": counters})
        in_order = [by_method[method.name] for method in self.servers.methods]
        return [measurement for of_group in zip(*in_order, strict=True) for measurement in of_group]

    def _measure_group(self, method: Method, group: RequestGroup) -> Measurement:
        run, batch = group.run, [self.requests[index] for index in group.indices]
        draws = [samplings(run.temperature, run.seed + index, 1)[0] for index in group.indices]
        prompts = [request.tokens for request in batch]
        load, began = MachineLoad(self.servers.process_groups), time.perf_counter()
        answers = method.engine.generate(prompts, run.max_new_tokens, draws)
        seconds = time.perf_counter() - began
        decoded = Decoded(answers, seconds, load.other_cores(), None)
        infos = [RequestInfo.of(index, request) for index, request in zip(group.indices, batch, strict=True)]
        return measurement_of(run, method, infos, decoded, group.number)

    def _warm_up(self, method: Method) -> None:
        """Let a server that has just started decode a few tokens with each number of requests at a time."""
        server = method.engine.server
        if not server.is_warm:
            for group in self.sizes:
                method.engine.generate([self.requests[index].tokens for index in group.indices], WARM_UP)
            server.is_warm = True
            self.before[method.name] = self._counters(method)

    def _counters(self, method: Method) -> Counters:
        """What a pool's drafters have drafted; the server writes it at intervals, so it is read until it is settled."""
        if len(method.drafters) < 2:
            return {}
        earlier, counters = None, method.engine.counters()
        while counters != earlier:
            time.sleep(SETTLE_S)
            earlier, counters = counters, method.engine.counters()
        return counters

    def _count(self, method: Method) -> Counters:
        """What a pool's drafters have drafted in the timed requests of a round."""
        before, counters = self.before[method.name], self._counters(method)
        self.before[method.name] = counters
        return {
            drafter: {key: value - before.get(drafter, {}).get(key, 0.0) for key, value in figures.items()}
            for drafter, figures in counters.items()
        }

    def _add(self, facts: Mapping[str, Any]) -> None:
        """Add what was saved of a round."""
        self.versions |= {facts.get("version", "")} - {""}
        for method, drafters in facts.get("counters", {}).items():
            for drafter, figures in drafters.items():
                sums = self.counters.setdefault(method, {}).setdefault(drafter, dict.fromkeys(figures, 0.0))
                for key, value in figures.items():
                    sums[key] += value


def request_groups(suite: SuiteConfig, seed: int, indices: Sequence[int], num_requests: int) -> list[RequestGroup]:
    """Groups of every temperature and number of requests at a time.

    indices: of the timed requests.  Full groups only, filled with other requests where `indices` has fewer.
    """
    groups: list[RequestGroup] = []
    filled = [*indices, *(index for index in range(num_requests) if index not in indices)]
    for temperature in suite.temperatures:
        for size in suite.batch_sizes:
            count = max(size, len(indices) // size * size)
            if count > num_requests:
                say(f"{size} requests at a time skipped: the suite has {num_requests}; type suite.num_prompts={size}")
                continue
            axis, at = (BATCH_SIZE, size) if size > 1 else (TEMPERATURE, temperature) if temperature else ("", 0.0)
            run = TimingRun(suite.max_new_tokens, seed, size, temperature, axis, at)
            starts = range(0, count, size)
            groups += [RequestGroup(run, start // size, tuple(filled[start : start + size])) for start in starts]
    if not groups:
        raise ConfigError("nothing can be timed; type suite.batch_sizes=[1] suite.temperatures=[0]")
    return groups


def served_mismatches(
    servers: ServerGroup, requests: Sequence[Request], measurements: Sequence[Measurement]
) -> list[dict[str, Any]]:
    """First differences of greedy answers from those without a drafter: the curve `mismatches` of the report.

    A difference counts at any margin, because vLLM does not decode in float64.
    """
    plain, differing = servers.methods[0], []
    expected = {_key(measurement): measurement for measurement in measurements if measurement.method == plain.name}
    for measurement in measurements:
        reference = expected[_key(measurement)]
        for info, answer, plain_answer in zip(
            measurement.requests, measurement.answers, reference.answers, strict=True
        ):
            position = first_difference(answer.tokens, plain_answer.tokens)
            if position is not None and measurement.temperature == 0:
                text = [*requests[info.request].tokens, *plain_answer.tokens[:position]]
                differing.append((measurement, info.request, position, text))
    if not differing:
        return []
    with servers.running(plain):
        return [
            Mismatch(measurement.method, index, position, plain.engine.margin(text), rerun=False).as_dict()
            | {key: getattr(measurement, key) for key in ("temperature", "axis", "at")}
            | {"batch_size": len(measurement.answers)}
            for measurement, index, position, text in differing
        ]


def _key(measurement: Measurement) -> tuple:
    return measurement.axis, measurement.at, measurement.temperature, len(measurement.answers), measurement.group
