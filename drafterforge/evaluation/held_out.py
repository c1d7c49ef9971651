"""Decodes held-out prompts with one drafter: accept length, speed and losslessness."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from drafterforge.assembly.runs import open_for_decoding
from drafterforge.config.commands import TrainDrafterConfig
from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.config.progress import bar, say
from drafterforge.data.answering import DATE
from drafterforge.data.chat import prompt_ids
from drafterforge.data.joined import JoinedAnswers
from drafterforge.data.prompts import load_prompts
from drafterforge.evaluation.lossless import count_mismatches, find_mismatches
from drafterforge.evaluation.methods import AUTOREGRESSIVE, INVARIANT, Method
from drafterforge.evaluation.rows import build_row
from drafterforge.evaluation.timing import generate_in_turns
from drafterforge.runtime.engine import Engine, kind_name
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.runtime.shapes import choose_shape
from drafterforge.targets.load import Target, load_target
from drafterforge.tree.grow import TreeShape

Rows = list[dict[str, Any]]


def held_out_prompts(target: Target, count: int, domains: Sequence[str]) -> list[list[int]]:
    """Token ids of test prompts of the built-in grammars, domains interleaved."""
    data = DataConfig(num_train=1, num_val=1, num_test=-(-count // len(domains)))
    by_domain = [load_prompts(data, DomainConfig(name=name), seed=0)["test"] for name in domains]
    mixed = [prompt for group in zip(*by_domain, strict=True) for prompt in group][:count]
    return [prompt_ids(target.tokenizer, prompt.messages, date=DATE) for prompt in mixed]


def decode_held_out(
    cfg: TrainDrafterConfig, target: Target, answers: JoinedAnswers, drafter: Path
) -> tuple[Rows, Rows]:
    """Rows of a report on the drafter, from test prompts of its domain, and the mismatches."""
    answered = answers.rows("test", cfg.domain.answers_domain)[: cfg.eval.num_prompts]
    prompts = [row.input_ids[: row.prompt_tokens] for row in answered]
    rows, mismatches = _measure(cfg, target, drafter, prompts)
    if cfg.eval.check_float32 and target.dtype != torch.float32:
        try:
            float32_target = load_target(dataclasses.replace(cfg.target, dtype="float32"))
            float32_rows, float32_mismatches = _measure(cfg, float32_target, drafter, prompts)
            rows, mismatches = rows + float32_rows, mismatches + float32_mismatches
        except (torch.OutOfMemoryError, MemoryError):
            say("the float32 check does not fit in memory and was left out; type eval.check_float32=false to skip it")
    return rows, mismatches


def _measure(cfg: TrainDrafterConfig, target: Target, drafter: Path, prompts: list[list[int]]) -> tuple[Rows, Rows]:
    """Rows of autoregressive, chain and tree decoding in the target's dtype, and the mismatches."""
    dtype = str(target.dtype).removeprefix("torch.")
    opened = open_for_decoding(drafter, target)
    kind = kind_name(opened)
    tree = choose_shape(cfg.runtime, target.device, target.dtype, kind)
    chain = TreeShape(num_tokens=tree.depth + 1, depth=tree.depth, top_k=1)
    shapes = {"chain": chain, "tree": tree} if cfg.eval.chain else {"tree": tree}
    numerics = choose_numerics(cfg.runtime.numerics, target)
    methods = [Method(AUTOREGRESSIVE, Engine(target, numerics="fast"))]  # the fastest baseline of speed-ups
    reference = AUTOREGRESSIVE
    if numerics == "invariant":
        reference = INVARIANT
        methods.append(Method(reference, Engine(target, numerics=numerics)))
    for name, shape in shapes.items():
        methods.append(
            Method(
                f"{kind} {name} {shape.num_tokens}/{shape.depth}/{shape.top_k}",
                Engine(target, opened, shape, numerics=numerics),
                selector="static",
                scheduler="static",
                drafters=[drafter.name],
            )
        )
    with bar(f"decoding in {dtype}", len(prompts) * len(methods)) as progress:
        answers = generate_in_turns(methods, prompts, cfg.eval.max_new_tokens, progress.advance)

    @cache
    def exact_target() -> Target:
        return load_target(dataclasses.replace(cfg.target, dtype="float64"))

    rows, mismatch_rows = [], []
    for method in methods:
        exact = None
        reference_name = AUTOREGRESSIVE if method.name == AUTOREGRESSIVE else reference
        if target.dtype == torch.float32:

            def exact(method: Method = method) -> tuple[Engine, Engine]:
                drafting = open_for_decoding(drafter, exact_target())
                return Engine(exact_target(), drafting, method.engine.shape, numerics="fast"), Engine(exact_target())

        mismatches = find_mismatches(method.name, target, answers[method.name], answers[reference_name], exact)
        mismatch_rows += [{"dtype": dtype, **mismatch.as_dict()} for mismatch in mismatches]
        rows.append(
            build_row(
                method,
                answers[method.name],
                answers[AUTOREGRESSIVE],
                domain=cfg.domain.name,
                mismatches=count_mismatches(mismatches),
                dtype=dtype,
                numerics=method.engine.numerics,
            )
        )
    return rows, mismatch_rows
