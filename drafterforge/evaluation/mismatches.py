"""Compares every timed answer with plain decoding; float32 differences at near ties are rerun in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.names import POOL
from drafterforge.evaluation.lossless import find_mismatches
from drafterforge.evaluation.measurements import Measurement
from drafterforge.evaluation.method_factory import EXTERNAL, MethodFactory
from drafterforge.evaluation.methods import AUTOREGRESSIVE, Method
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.scaling import POOL_SIZE
from drafterforge.evaluation.timing import samplings
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.rows import Generation
from drafterforge.targets.load import load_target


def settle_mismatches(
    cfg: EvaluateConfig, factory: MethodFactory, requests: Sequence[Request], measurements: Sequence[Measurement]
) -> list[dict[str, Any]]:
    """First differences from plain decoding: the curve `mismatches` of the report."""
    target, fits = factory.target, True  # fits: the target in float64 in memory, as far as is known

    @cache
    def float64_methods(pool_size: int) -> dict[str, Method]:
        return _methods_by_name(float64_factory(), pool_size)

    @cache
    def float64_factory() -> MethodFactory:
        return factory.for_target(load_target(dataclasses.replace(cfg.target, dtype="float64")))

    def float64_engines(measurement: Measurement, request: Request) -> tuple[Engine, Engine]:
        nonlocal fits
        if not fits:
            raise MemoryError  # without loading it again
        fits = False  # if the next line fails
        methods = float64_methods(_pool_size(measurement))
        fits = True
        return methods[measurement.method].engine_of(request), methods[AUTOREGRESSIVE].engine

    by_key = {_key(measurement, measurement.method): measurement for measurement in measurements}
    mismatches = []
    for measurement in measurements:
        reference = by_key[_key(measurement, factory.reference_of(measurement.method, measurement.external))]
        for info, answer, expected in zip(measurement.requests, measurement.answers, reference.answers, strict=True):
            if answer.tokens == expected.tokens:
                continue
            request = requests[info.request]
            draws = samplings(measurement.temperature, cfg.seed + info.request, 1)
            rerun = target.dtype == torch.float32 and not measurement.external
            exact = (lambda m=measurement, r=request: float64_engines(m, r)) if rerun else None
            pair = [Generation(request.tokens, generation.tokens) for generation in (answer, expected)]
            (mismatch,) = find_mismatches(measurement.method, target, pair[:1], pair[1:], exact, draws)
            section = {key: getattr(measurement, key) for key in ("temperature", "axis", "at")}
            section |= {"batch_size": len(measurement.answers)}
            mismatches.append(mismatch.as_dict() | {"prompt": info.request, **section})
    return mismatches


def _methods_by_name(factory: MethodFactory, pool_size: int) -> dict[str, Method]:
    """pool_size: 0 for all drafters of the pool."""
    if pool_size:
        methods = factory.with_pool_size(pool_size).build([POOL])
    else:
        names = [name for name in factory.cfg.suite.all_methods if name not in EXTERNAL]  # whose text may differ
        methods = factory.build([*names, POOL])
    return {method.name: method for method in methods}


def _pool_size(measurement: Measurement) -> int:
    """Number of drafters in the measured pool; 0: all."""
    return int(measurement.at) if measurement.axis == POOL_SIZE else 0


def _key(measurement: Measurement, method: str) -> tuple:
    return (
        method,
        measurement.axis,
        measurement.at,
        measurement.temperature,
        len(measurement.answers),
        measurement.group,
    )
