"""Times methods interleaved request by request, so that machine drift affects all methods alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drafterforge.config.progress import bar
from drafterforge.evaluation.machine_load import MachineLoad
from drafterforge.evaluation.measurements import Measurement, RequestInfo
from drafterforge.evaluation.memory import measure_peak
from drafterforge.evaluation.methods import Method, rotate
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.resume_cache import ResumeCache
from drafterforge.runtime.rows import Generation
from drafterforge.runtime.sampling import GREEDY, Sampling

WARM_UP = 8  # tokens
SESSION = int(time.time())  # Unix time at which this process was started


@dataclass
class Decoded:
    """Answers of a method to requests that were decoded together."""

    answers: list[Generation]
    seconds: float  # wall-clock, from the first prompt to the last token
    other_cores: float | None  # processor cores used by other programs meanwhile
    peak_bytes: int | None  # beyond the memory in use before


@dataclass(frozen=True)
class TimingRun:
    """Settings of a timing: greedy single requests, or a point on an axis of the scaling suite."""

    max_new_tokens: int
    seed: int
    batch_size: int = 1
    temperature: float = 0.0
    axis: str = ""  # the quantity that is varied
    at: float = 0.0  # its value
    warm_up: tuple[int, ...] = ()  # indices of requests that every method answers first

    @property
    def part(self) -> str:
        """Name of its parts in the resume cache."""
        axis = self.axis.replace(" ", "-")
        return f"timed-{axis}-{self.at:g}-{self.temperature:g}-{self.batch_size}" if axis else "timed"

    @property
    def title(self) -> str:
        more = f", temperature {self.temperature:g}, batch {self.batch_size}" if self.warm_up else ""
        return f"timing, {self.axis} {self.at:g}{more}" if self.axis else "timing"


def generate_in_turns(
    methods: Sequence[Method],
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    progress: Callable[[], None] = lambda: None,
    sampling: Sequence[Sampling] | None = None,
) -> dict[str, list[Generation]]:
    """Generations of each method, in the order of `prompts`; each method is warmed up on the first prompt.

    sampling: of each prompt; None: greedy.
    """
    draws = [GREEDY] * len(prompts) if sampling is None else sampling
    for method in methods if prompts else ():
        method.engine.generate([prompts[0]], min(max_new_tokens, WARM_UP))
    spare_loaded_objects()
    generations: dict[str, list[Generation]] = {method.name: [] for method in methods}
    for index, prompt in enumerate(prompts):
        for method in rotate(methods, index):
            generations[method.name] += method.engine.generate([prompt], max_new_tokens, draws[index])
            progress()
    return generations


def time_methods(
    run: TimingRun, methods: Sequence[Method], requests: Sequence[Request], indices: Sequence[int], cache: ResumeCache
) -> list[Measurement]:
    """Measurements of each method on the requests at `indices`, in groups of the run's batch size.

    A group is cached once all methods have decoded it, so that a resumed run compares times of one session.
    """
    groups = [indices[start : start + run.batch_size] for start in range(0, len(indices), run.batch_size)]
    measurements: list[Measurement] = []
    is_warm = False

    def measure_group(number: int, group: Sequence[int]) -> list[Measurement]:
        nonlocal is_warm
        batch = [requests[index] for index in group]
        if not is_warm:
            for start in range(0, len(run.warm_up), run.batch_size):
                indices = run.warm_up[start : start + run.batch_size]
                draws = [samplings(run.temperature, run.seed + index, 1)[0] for index in indices]
                for method in methods:
                    decode(method, [requests[index] for index in indices], run.max_new_tokens, draws)
            warm_up(methods, batch, samplings(run.temperature, run.seed, len(batch)))
            spare_loaded_objects()
            is_warm = True
        draws = [samplings(run.temperature, run.seed + index, 1)[0] for index in group]
        infos = [RequestInfo.of(index, request) for index, request in zip(group, batch, strict=True)]
        by_name = {}
        for method in rotate(methods, number):
            decoded = decode(method, batch, run.max_new_tokens, draws)
            by_name[method.name] = measurement_of(run, method, infos, decoded, number)
        return [by_name[method.name] for method in methods]

    with bar(run.title, len(groups)) as progress:
        for number, group in enumerate(groups):
            measurements += cache.measurements(
                f"{run.part}-{number:05d}", lambda n=number, g=group: measure_group(n, g)
            )
            progress.advance()
    return measurements


def measurement_of(
    run: TimingRun, method: Method, infos: list[RequestInfo], decoded: Decoded, group: int
) -> Measurement:
    """The measurement of a group of requests that a method has decoded.  group: its number in the run."""
    return Measurement(
        method.name,
        infos,
        decoded.answers,
        decoded.seconds,
        selector=method.selector,
        scheduler=method.scheduler,
        drafters=list(method.drafters),
        numerics=method.engine.numerics,
        dtype=str(method.engine.target.dtype).removeprefix("torch."),
        external=method.external,
        group=group,
        temperature=run.temperature,
        axis=run.axis,
        at=run.at,
        peak_bytes=decoded.peak_bytes,
        other_cores=decoded.other_cores,
        session=SESSION,
    )


def warm_up(methods: Sequence[Method], group: Sequence[Request], sampling: Sequence[Sampling]) -> None:
    """Decode a few tokens with each method, experts included."""
    for method in methods:
        for engine in dict.fromkeys((method.engine, *method.experts.values())):
            engine.generate([request.tokens for request in group], WARM_UP, list(sampling))


def spare_loaded_objects() -> None:
    """Let the garbage collector no longer walk through what is loaded, which takes as long as many cycles.

    The walk falls into the answer of one method, the same one in every run.
    """
    gc.collect()
    gc.freeze()


def decode(method: Method, group: Sequence[Request], max_new_tokens: int, sampling: Sequence[Sampling]) -> Decoded:
    """Decode requests together with one method."""
    engine = method.engine_of(group[0])
    with measure_peak(engine.target.device) as memory:
        load, began = MachineLoad(), time.perf_counter()
        answers = engine.generate([request.tokens for request in group], max_new_tokens, list(sampling))
        seconds, other_cores = time.perf_counter() - began, load.other_cores()
    return Decoded(answers, seconds, other_cores, memory.num_bytes)


def samplings(temperature: float, seed: int, count: int) -> list[Sampling]:
    """Sampling of each of `count` requests."""
    if temperature == 0:
        return [GREEDY] * count
    return [Sampling(temperature=temperature, seed=seed + index) for index in range(count)]
