"""The layout that SGLang, SafeAILab's EAGLE, vLLM, OpenVINO and llama.cpp's converter read."""

from __future__ import annotations

import shlex
from pathlib import Path

import torch

from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.interop.layout import DEPTH, TargetFacts, UnfitError, dtype_name, served_spec, tensors_of, write_model


def write_sglang(
    folder: Path, drafter: Eagle3Drafter, target: TargetFacts, out: Path, dtype: torch.dtype | None = None
) -> str:
    """Write the drafter to `folder`; returns the command that serves the target with it.

    out: the final path of `folder`.  dtype: of the weights; None: the smallest lossless one.
    """
    if drafter.spec.norm_before_residual:
        raise UnfitError(
            f"{out} is not written: its drafter has norm_before_residual, which SGLang and SafeAILab's code ignore, so "
            "they would silently draft wrong tokens; type format=vllm, or drafter=OTHER"
        )
    write_plain(folder, drafter, target, dtype)
    return serve_sglang(target, out)


def write_plain(folder: Path, drafter: Eagle3Drafter, target: TargetFacts, dtype: torch.dtype | None = None) -> None:
    """Write the drafter to `folder` under published tensor names; see `write_sglang`."""
    tensors = tensors_of(drafter, dtype)
    config = served_spec(drafter.spec, target.config).to_config(dtype_name(tensors))
    write_model(folder, config, tensors, "sglang")


def serve_sglang(target: TargetFacts, out: Path) -> str:
    """The command to serve the target with a chain of DEPTH drafted tokens; SGLang counts the root as well."""
    return (
        f"python -m sglang.launch_server --model-path {shlex.quote(target.model)} --speculative-algorithm EAGLE3 "
        f"--speculative-draft-model-path {shlex.quote(str(out))} --speculative-num-steps {DEPTH} "
        f"--speculative-eagle-topk 1 --speculative-num-draft-tokens {DEPTH + 1} --dtype {target.dtype}"
    )
