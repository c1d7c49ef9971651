"""Compares every timed answer with plain decoding; a float32 difference at a near tie is decoded again in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from drafterforge.config.commands import EvaluateConfig
from drafterforge.evaluation.lossless import find_mismatches
from drafterforge.evaluation.measurements import Measurement
from drafterforge.evaluation.method_factory import MethodFactory
from drafterforge.evaluation.methods import AUTOREGRESSIVE, Method
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.scaling import POOL_SIZE
from drafterforge.evaluation.timing import samplings
from drafterforge.runtime.batch import Generation
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.sampling import Sampling
from drafterforge.targets.load import load_target


class FixedSampling:
    """An engine that always samples in the given way."""

    def __init__(self, engine: Engine, sampling: Sampling) -> None:
        self.engine, self.sampling = engine, sampling

    def generate(self, prompts: Sequence[list[int]], max_new_tokens: int) -> list[Generation]:
        """Answers, drawn in that way."""
        return self.engine.generate(prompts, max_new_tokens, self.sampling)


def settle_mismatches(
    cfg: EvaluateConfig, factory: MethodFactory, requests: Sequence[Request], measurements: Sequence[Measurement]
) -> list[dict[str, Any]]:
    """First differences from plain decoding, as the report lists them."""
    target = factory.target

    @cache
    def float64_methods(pool_size: int) -> dict[str, Method]:
        return _methods_by_name(float64_factory(), pool_size)

    @cache
    def float64_factory() -> MethodFactory:
        return factory.for_target(load_target(dataclasses.replace(cfg.target, dtype="float64")))

    def float64_engines(one: Measurement, request: Request, sampling: Sampling) -> tuple[FixedSampling, FixedSampling]:
        methods = float64_methods(_pool_size(one))
        engines = methods[one.method].engine_of(request), methods[AUTOREGRESSIVE].engine
        return FixedSampling(engines[0], sampling), FixedSampling(engines[1], sampling)

    by_key = {_key(one, one.method): one for one in measurements}
    mismatches = []
    for one in measurements:
        reference = by_key[_key(one, factory.reference_of(one.method, one.external))]
        for info, answer, wanted in zip(one.requests, one.answers, reference.answers, strict=True):
            if answer.tokens == wanted.tokens:
                continue
            request = requests[info.request]
            sampling = samplings(one.temperature, cfg.seed + info.request, 1)[0]
            rerun = target.dtype == torch.float32 and not one.external
            exact = (lambda o=one, r=request, s=sampling: float64_engines(o, r, s)) if rerun else None
            pair = [Generation(request.tokens, each.tokens) for each in (answer, wanted)]
            (mismatch,) = find_mismatches(one.method, target, pair[:1], pair[1:], exact)
            where = {"prompt": info.request, "temperature": one.temperature, "axis": one.axis, "at": one.at}
            mismatches.append(mismatch.as_dict() | where)
    return mismatches


def _methods_by_name(factory: MethodFactory, pool_size: int) -> dict[str, Method]:
    """pool_size: 0 for all drafters of the pool."""
    factory = factory.with_pool_size(pool_size) if pool_size else factory
    return {method.name: method for method in factory.build([*factory.cfg.suite.methods, "default"])}


def _pool_size(measurement: Measurement) -> int:
    """Drafters of the pool that was measured; 0: all."""
    return int(measurement.at) if measurement.axis == POOL_SIZE else 0


def _key(one: Measurement, method: str) -> tuple:
    return method, one.axis, one.at, one.temperature, one.group
