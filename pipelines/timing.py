"""Methods against the clock, taking turns request by request; and whether what they said is the target's own text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.progress import bar
from drafterforge.evaluation.ledger import Asked, Entry
from drafterforge.evaluation.lossless import compare
from drafterforge.evaluation.measure import AUTOREGRESSIVE, Method, decode, rotated, samplings, warm_up
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.shelf import Shelf
from drafterforge.pipelines.contenders import Contenders
from drafterforge.runtime.batch import Generation
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.sampling import Sampling
from drafterforge.targets.load import load_target

POOL_SIZE = "pool size"


def timed(
    cfg: EvaluateConfig,
    methods: Sequence[Method],
    requests: Sequence[Request],
    places: Sequence[int],
    shelf: Shelf,
    *,
    batch_size: int = 1,
    temperature: float = 0.0,
    axis: str = "",
    at: float = 0.0,
) -> list[Entry]:
    """What every method made of the requests at `places`, in groups of `batch_size`.

    A group is kept when all methods have had their turn at it, so that an interrupted run compares like with like.
    """
    groups = [places[start : start + batch_size] for start in range(0, len(places), batch_size)]
    dtype = str(methods[0].engine.target.dtype).removeprefix("torch.")
    found: list[Entry] = []
    warm = False

    def measured(number: int, group: Sequence[int]) -> list[Entry]:
        nonlocal warm
        asked = [requests[place] for place in group]
        if not warm:
            warm_up(methods, asked, samplings(temperature, cfg.seed, len(asked)))
            warm = True
        draws = [samplings(temperature, cfg.seed + place, 1)[0] for place in group]
        told = [Asked.of(place, request) for place, request in zip(group, asked, strict=True)]
        entries = []
        for method in rotated(methods, number):
            answered = decode(method, asked, cfg.suite.max_new_tokens, draws)
            where = {"group": number, "temperature": temperature, "axis": axis, "at": at}
            entries.append(Entry.of(method, told, answered, dtype, **where))
        order = [method.name for method in methods]
        return sorted(entries, key=lambda entry: order.index(entry.method))

    name = f"timed-{axis.replace(' ', '-')}-{at:g}" if axis else "timed"
    title = f"timing, {axis} {at:g}" if axis else "timing"
    with bar(title, len(groups)) as progress:
        for number, group in enumerate(groups):
            found += shelf.entries(f"{name}-{number:05d}", lambda n=number, g=group: measured(n, g))
            progress.advance()
    return found


class Repeated:
    """An engine that samples as it did before."""

    def __init__(self, engine: Engine, sampling: Sampling) -> None:
        self.engine, self.sampling = engine, sampling

    def generate(self, prompts: Sequence[list[int]], count: int) -> list[Generation]:
        """As the engine."""
        return self.engine.generate(prompts, count, self.sampling)


def settled(
    cfg: EvaluateConfig, contenders: Contenders, requests: Sequence[Request], entries: Sequence[Entry]
) -> list[dict[str, Any]]:
    """First differences from autoregressive decoding; near ties in float32 are decoded again in float64."""
    target = contenders.target

    @cache
    def exact() -> Contenders:
        return contenders.on(load_target(dataclasses.replace(cfg.target, dtype="float64")))

    @cache
    def exact_methods(size: int) -> dict[str, Method]:
        return built(cfg, exact(), size)

    def again(entry: Entry, request: Request, sampling: Sampling) -> tuple[Repeated, Repeated]:
        found = exact_methods(size_of(entry))
        return (
            Repeated(found[entry.method].engine_of(request), sampling),
            Repeated(found[AUTOREGRESSIVE].engine, sampling),
        )

    texts = {key(entry, entry.method): entry for entry in entries}
    found = []
    for entry in entries:
        wanted = texts[key(entry, contenders.text_of(entry.method, entry.external))]
        for asked, answer, other in zip(entry.asked, entry.answers, wanted.answers, strict=True):
            if answer.tokens == other.tokens:
                continue
            request = requests[asked.request]
            sampling = samplings(entry.temperature, cfg.seed + asked.request, 1)[0]
            rerun = target.dtype == torch.float32 and not entry.external
            settle = (lambda e=entry, r=request, s=sampling: again(e, r, s)) if rerun else None
            own = Generation(request.tokens, answer.tokens), Generation(request.tokens, other.tokens)
            (one,) = compare(entry.method, target, own[:1], own[1:], settle)
            where = {"prompt": asked.request, "temperature": entry.temperature, "axis": entry.axis, "at": entry.at}
            found.append(one.as_dict() | where)
    return found


def built(cfg: EvaluateConfig, contenders: Contenders, size: int) -> dict[str, Method]:
    """The methods by name; size: of the pool, 0: as it is."""
    few = contenders.of_size(size) if size else contenders
    return {method.name: method for method in few.build([*cfg.suite.methods, "default"])}


def size_of(entry: Entry) -> int:
    """Drafters of the pool that was measured; 0: all."""
    return int(entry.at) if entry.axis == POOL_SIZE else 0


def key(entry: Entry, method: str) -> tuple:
    """What tells an entry from others."""
    return method, entry.axis, entry.at, entry.temperature, entry.group
