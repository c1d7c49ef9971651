"""Times the steps of a decoding cycle, for `bench_decode.py`: forward passes alone, and verification by nodes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.kernels.attention import additive
from drafterforge.kernels.dispatch import CandidatePool
from drafterforge.runtime.engine import Engine
from drafterforge.targets.load import Target
from drafterforge.tree.grow import TreeShape

import torch

NODE_COUNTS = (1, 2, 4, 8, 16, 32, 64)


class RecordedLayer:
    """Stands for a drafter's packed layer and head, see `native_layers`."""

    def __init__(self, layer: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.takes, self.drafts = layer.takes, layer.drafts
        self.compute, self.draft = wrap(layer), wrap(layer.draft)

    def __call__(self, *args: Any) -> Any:
        return self.compute(*args)


def emptied(argument: Any) -> Any:
    """An argument for another call: a pool of candidates is filled once."""
    if isinstance(argument, CandidatePool):
        return type(argument)(argument.batch, argument.most, argument.names)
    return argument


class Recorder:
    """Records the forward passes of target and drafter while an engine decodes, to run them again without it."""

    def __init__(self, target: Target, drafter: FusedDrafter) -> None:
        self.calls: list[Callable[[], Any]] = []
        self.recording, self.seconds = False, 0.0
        self.caches: list[Any] = []
        for model, names in ((target, ("forward", "logits")), (drafter, ("layer", "logits", "fuse"))):
            for name in names:
                setattr(model, name, self._wrap(getattr(model, name)))
        if drafter.packed is not None:
            drafter.packed = RecordedLayer(drafter.packed, self._wrap)

    def _wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self.recording:
                states = [(cache, cache.start, cache.slots, cache.used) for cache in self.caches]

                def repeat() -> None:
                    for cache, *state in states:
                        cache.start, cache.slots, cache.used = state
                    function(*map(emptied, args), **kwargs)

                self.calls.append(repeat)
            began = time.perf_counter()
            output = function(*args, **kwargs)
            self.seconds += time.perf_counter() - began
            return output

        return recorded


def time_forward_passes(
    target: Target, drafter: FusedDrafter, shape: TreeShape, prompt: list[int], cycles: int
) -> dict[str, float]:
    """Time of a cycle over its forward passes run alone, and the share of a cycle outside them; medians."""
    engine, recorder = Engine(target, drafter, shape, graphs=False), Recorder(target, drafter)
    ratios, shares = [], []
    with torch.inference_mode():
        for _ in range(5):
            batch = engine.open_batch()
            batch.admit(*engine.read(prompt, 4 * cycles * (shape.depth + 1)))
            recorder.caches = [batch.cache, batch.proposer.group.cache]
            batch.cycle(shape)
            recorder.calls, recorder.recording, recorder.seconds = [], True, 0.0
            began = time.perf_counter()
            for _ in range(cycles):
                if batch.rows:
                    batch.cycle(shape)
            cycles_s = time.perf_counter() - began
            recorder.recording = False
            shares.append(1 - recorder.seconds / cycles_s)
            began = time.perf_counter()
            for call in recorder.calls:
                call()
            ratios.append(cycles_s / (time.perf_counter() - began))
    return {"host_share": statistics.median(shares), "cycle_over_forwards": statistics.median(ratios)}


def time_verification(target: Target, context: int, repeats: int) -> dict[int, float]:
    """Milliseconds of a target pass with logits, by number of nodes, after `context` tokens."""
    cache = target.new_cache()
    tokens = torch.arange(context, device=target.device)[None] + 100
    seconds: dict[int, list[float]] = {count: [] for count in NODE_COUNTS}
    with torch.inference_mode():
        cache.set_slots(0, context)
        target.forward(tokens, torch.arange(context, device=target.device)[None], cache)
        for _ in range(repeats):
            for count in NODE_COUNTS:
                cache.set_slots(context, count)
                mask = torch.ones(count, context + count, dtype=torch.bool, device=target.device).tril(context)
                bias = additive(mask, target.compute_dtype)[None] if count > 1 else None
                positions = torch.arange(context, context + count, device=target.device)[None]
                began = time.perf_counter()
                states, _ = target.forward(tokens[:, :count], positions, cache, bias)
                target.logits(states).argmax(dim=-1).tolist()
                seconds[count].append(time.perf_counter() - began)
    return {count: 1e3 * statistics.median(times) for count, times in seconds.items()}
