"""Times requests along axes, temperature, batch size, context length and pool size, or in cells of the first three."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from drafterforge.config.names import POOL
from drafterforge.config.progress import say
from drafterforge.data.answering import DATE
from drafterforge.data.chat import Message, prompt_ids
from drafterforge.evaluation.measurements import Measurement
from drafterforge.evaluation.method_factory import MethodFactory
from drafterforge.evaluation.methods import Method
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.suites import Suite
from drafterforge.evaluation.timing import TimingRun, time_methods

TEMPERATURE, BATCH_SIZE, CONTEXT, POOL_SIZE = "temperature", "batch size", "context length", "pool size"
MAX_TURNS = 64  # earlier turns put before a request to lengthen it
FIGURES = ("speedup", "mat", "tokens_per_s")


def time_along_axes(
    suite: Suite, factory: MethodFactory, requests: Sequence[Request], indices: Sequence[int]
) -> tuple[list[Measurement], list[Request]]:
    """Measurements along every axis, and the requests followed by the lengthened ones."""
    cfg = suite.cfg
    methods = factory.build(cfg.suite.sampling_methods)
    all_requests, measurements = list(requests), []

    def measure(axis: str, at: float, indices: Sequence[int], methods: Sequence[Any] = methods, **options: Any) -> None:
        run = TimingRun(cfg.suite.max_new_tokens, cfg.seed, axis=axis, at=at, **options)
        measurements.extend(time_methods(run, methods, all_requests, indices, suite.cache))

    for temperature in cfg.suite.temperatures:
        measure(TEMPERATURE, temperature, indices, temperature=temperature)
    for size in cfg.suite.batch_sizes:
        filled = [*indices, *(index for index in range(len(requests)) if index not in indices)]
        count = max(size, len(indices) // size * size)
        if count > len(requests):
            say(f"batch size {size} skipped: the suite has {len(requests)} requests; type suite.num_prompts={size}")
            continue
        allow_batch(methods, size)
        measure(BATCH_SIZE, size, filled[:count], batch_size=size)
    for length in cfg.suite.context_lengths:
        longer = lengthen(suite, [requests[index] for index in indices], length)
        all_requests += longer
        if longer:
            measure(CONTEXT, length, range(len(all_requests) - len(longer), len(all_requests)))
    count = len(factory.pool.names)
    for size in dict.fromkeys(min(size, count) for size in cfg.suite.pool_sizes):
        measure(POOL_SIZE, size, indices, factory.with_pool_size(size).build([POOL]))
    return measurements, all_requests


def time_cells(
    suite: Suite, factory: MethodFactory, requests: Sequence[Request]
) -> tuple[list[Measurement], list[Request]]:
    """Measurements at every temperature, batch size and context length, and the requests followed by longer ones.

    A method has a new engine in every cell, which keeps what it learns there; the requests of a cell do not repeat.
    """
    cfg, all_requests, measurements = suite.cfg, list(requests), []
    needed = cfg.suite.warm_up_prompts + cfg.suite.cell_prompts
    for length in cfg.suite.context_lengths:
        start = len(all_requests)
        all_requests += lengthen(suite, requests, length)[:needed]
        timed = range(start + cfg.suite.warm_up_prompts, len(all_requests))
        for temperature, size in itertools.product(cfg.suite.temperatures, cfg.suite.batch_sizes):
            if not (count := len(timed) // size * size):
                if len(all_requests) > start:  # the context fits
                    say(f"batch size {size} skipped: a cell has {len(timed)} requests to time; see suite.cell_prompts")
                continue
            methods = factory.build(cfg.suite.cell_methods)
            allow_batch(methods, size)
            run = TimingRun(
                cfg.suite.max_new_tokens, cfg.seed, size, temperature, CONTEXT, length, tuple(range(start, timed.start))
            )
            measurements += time_methods(run, methods, all_requests, timed[:count], suite.cache)
    return measurements, all_requests


def allow_batch(methods: Sequence[Method], size: int) -> None:
    """Let every engine decode `size` requests together."""
    for method in methods:
        for engine in (method.engine, *method.experts.values()):
            engine.max_batch = max(engine.max_batch, size)


def lengthen(suite: Suite, requests: Sequence[Request], length: int) -> list[Request]:
    """The requests after as many other held-out prompts and answers of the target as fit into `length` tokens.

    A system prompt stays first.  Requests that are longer are left out.
    """
    cfg, target = suite.cfg, suite.target
    room = target.max_positions - cfg.suite.max_new_tokens
    if length > room:
        say(f"context length {length} skipped: this target has room for {room} tokens before the answer")
        return []
    by_domain = suite.prompts(MAX_TURNS, cfg.seed + 2)
    prompts = [prompt for drawn in by_domain.values() for prompt in drawn[:MAX_TURNS]][:MAX_TURNS]
    openings = [Request(prompt_ids(target.tokenizer, prompt.messages, date=DATE), prompt.domain) for prompt in prompts]
    replies = suite.answers(openings, "answering earlier turns", "before")
    turns = [
        [*prompt.messages, {"role": "assistant", "content": reply.text}]
        for prompt, reply in zip(prompts, replies, strict=True)
    ]
    longer = []
    for request in requests:
        if len(request.tokens) > length:
            continue
        tokens: list[int] = request.tokens
        context: list[Message] = []
        system = list(takewhile(lambda message: message["role"] == "system", request.messages))
        for turn in turns:
            messages = [*system, *context, *turn, *request.messages[len(system) :]]
            extended = prompt_ids(target.tokenizer, messages, date=DATE)
            if len(extended) <= length:
                tokens, context = extended, [*context, *turn]
        longer.append(Request(tokens, request.domain, expert=request.expert))
    if left_out := len(requests) - len(longer):
        say(f"context length {length}: {left_out} of {len(requests)} requests are longer and left out")
    return longer


def scaling_curves(
    rows: Sequence[Mapping[str, Any]], replayed: Mapping[str, list[dict[str, Any]]]
) -> dict[str, list[dict[str, Any]]]:
    """The curve `scaling`: replayed points, then the timed figures of every method along every axis."""
    curves = {axis: list(points) for axis, points in replayed.items()}
    for row in rows:
        if row.get("axis") and not str(row["method"]).startswith("autoregressive"):
            sampled = row["temperature"] and row["axis"] != TEMPERATURE
            name = f"{row['method']} (temperature {row['temperature']:g})" if sampled else row["method"]
            point = {"method": name, "at": row["at"]} | {key: row[key] for key in FIGURES}
            curves.setdefault(row["axis"], []).append(point)
    return curves
