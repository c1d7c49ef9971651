"""Decides by a trial on the device whether a Triton kernel replaces the torch operations of the same result.

The trial runs at the first use with a dtype and shapes of one class.  It compares the results and times both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from drafterforge.kernels.gpu import is_capturing

log = logging.getLogger(__name__)

Operation = Callable[[], Tensor | tuple[Tensor, ...]]

REPEATS, ROUNDS = 10, 3  # calls of one timing, and timings, of which the shortest counts
HEAD_START = 10_000_000  # clock cycles that the device waits while the host enqueues the calls, about 6 ms
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}  # relative to the largest number


def device_seconds(operation: Operation) -> float:
    """Seconds that a call takes on the device; those of the host are hidden, as when a graph is replayed."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    timings = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        torch.cuda._sleep(HEAD_START)
        start.record()
        for _ in range(REPEATS):
            operation()
        end.record()
        end.synchronize()
        timings.append(start.elapsed_time(end) / 1000 / REPEATS)
    return min(timings)


def agree(results: Tensor | tuple[Tensor, ...], references: Tensor | tuple[Tensor, ...]) -> bool:
    """Whether shapes and dtypes are equal, and all numbers within the tolerance of their dtype."""
    if isinstance(results, Tensor):
        results, references = (results,), (references,)
    pairs = list(zip(results, references, strict=True))
    if any(result.shape != reference.shape or result.dtype != reference.dtype for result, reference in pairs):
        return False
    return all(_is_close(result, reference) for result, reference in pairs)


def _is_close(result: Tensor, reference: Tensor) -> bool:
    if not reference.numel():
        return True
    tolerance = TOLERANCE[reference.dtype] * reference.float().abs().max()
    return bool((result.float() - reference.float()).abs().max() <= tolerance)  # False for NaN


class KernelTrials:
    """The outcomes of all trials."""

    def __init__(
        self,
        seconds: Callable[[Operation], float] = device_seconds,
        is_capturing: Callable[[], bool] = is_capturing,
    ) -> None:
        """seconds: times an operation that has run before."""
        self.seconds, self.is_capturing = seconds, is_capturing
        self.outcomes: dict[Hashable, bool] = {}
        self.warned: set[str] = set()  # kernels of which a line was logged

    def prefers(self, name: str, shape_class: Hashable, kernel: Operation, reference: Operation) -> bool:
        """Whether the kernel gives the reference's results in less time; tried once for each name and shape class.

        Both operations are called several times, and must give equal results each time.  While a graph is captured
        nothing is tried, and the answer is no: the runs that warm a graph up come first and decide.
        """
        key = name, shape_class
        if key not in self.outcomes:
            if self.is_capturing():
                return False
            self.outcomes[key] = self._try(name, shape_class, kernel, reference)
        return self.outcomes[key]

    def _try(self, name: str, shape_class: Hashable, kernel: Operation, reference: Operation) -> bool:
        try:
            if not agree(kernel(), reference()):
                self._warn(name, f"its results differ from those of torch for {shape_class}")
                return False
            kernel_s, reference_s = self.seconds(kernel), self.seconds(reference)
        except Exception as error:  # Triton, its compilers and CUDA raise errors of many kinds
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self._warn(name, lines[0][:200])
            return False
        log.debug("%s %s: Triton %.1f us, torch %.1f us", name, shape_class, kernel_s * 1e6, reference_s * 1e6)
        return kernel_s < reference_s

    def _warn(self, name: str, reason: str) -> None:
        if name not in self.warned:
            log.warning("torch computes %s instead of Triton: %s", name, reason)
            self.warned.add(name)
