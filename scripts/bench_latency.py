"""Measures the latency profile of a target of a real size on this device, as `drafterforge calibrate` does.

    python scripts/bench_latency.py --size llama3.1-8b --profile h200.json [--json PATH]

Weights are random, see `random_models.py`; `--size embedded` is the embedded target with the shipped generalist.  Train
schedulers for that device anywhere with `latency.path=h200.json`.  The rows are the seconds of one target pass by its
number of nodes, as `drafter=auto` measures them.

Figures:
    token_ms           milliseconds of a token without a drafter
    verify16_over_one  milliseconds of a target pass with 16 nodes over one with 1
    verify64_over_one  the same with 64 nodes
    level_ms           milliseconds of a drafted level of the widest tree
    error_total        median error of the predicted time of held-out answers
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from drafterforge.artifacts.atomic import save_json_atomic
from drafterforge.artifacts.locate import SHIPPED
from drafterforge.assembly.pools import open_pool
from drafterforge.config.commands import CalibrateConfig
from drafterforge.config.replay import GridConfig, LatencyConfig
from drafterforge.config.target import TargetConfig
from drafterforge.evaluation.calibration import action_grid, measure_drafter
from drafterforge.evaluation.trace_recording import policy_prompts
from drafterforge.reporting.console import print_profile
from drafterforge.runtime.shapes import default_shape
from drafterforge.runtime.verify_costs import measure
from drafterforge.schedulers.latency import LatencyProfile
from drafterforge.targets.device import DTYPES, choose_device, choose_dtype
from drafterforge.targets.load import load_target

import numpy as np
import torch
from bench_record import save_record
from random_models import SIZES, draft_vocabulary, random_pool, random_prompt, random_target, rate_for

EMBEDDED, DRAFTER = "embedded", "general"
MAT = 3.0  # tokens a cycle of the default tree, with random weights


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=(EMBEDDED, *SIZES), default="llama3.1-8b", help="size of the target")
    parser.add_argument("--dtype", choices=("auto", *DTYPES), default="auto", help="dtype of the weights")
    parser.add_argument("--device", default="auto", help="auto | cpu | cuda")
    parser.add_argument("--vocab", type=int, default=32000, help="size of the draft vocabulary")
    parser.add_argument("--context", type=int, default=512, help="tokens of the longest prompt")
    parser.add_argument("--quick", action="store_true", help="few short answers and small trees, to test the script")
    parser.add_argument("--profile", type=Path, metavar="PATH", help="write the profile here")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report here")
    options = parser.parse_args(argv)
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    cfg = CalibrateConfig(drafter=DRAFTER)
    if options.quick:
        grid = GridConfig(name="calibration", num_tokens=[1, 3], depths=[2], top_ks=[1, 2])
        latency = LatencyConfig(num_prompts=8, num_held_out=2, max_new_tokens=16, probe_tokens=4)
        cfg = replace(cfg, grid=grid, latency=latency)
    counts = {"train": cfg.latency.num_prompts, "test": cfg.latency.num_held_out}
    torch.manual_seed(0)
    if options.size == EMBEDDED:
        target = load_target(TargetConfig(dtype=options.dtype, device=str(device)))
        drafter = open_pool(SHIPPED, target, [DRAFTER])[DRAFTER]
        prompts = policy_prompts(cfg.domains, *counts.values(), target, cfg.seed)
    else:
        target = random_target(options.size, device, dtype, options.vocab)
        vocab = draft_vocabulary(target, options.vocab)
        (drafter,) = random_pool(target, vocab, 1, rate_for(MAT, default_shape(device, dtype).depth))
        lengths = np.random.default_rng(0).integers(options.context // 8, options.context + 1, sum(counts.values()))
        drawn = [random_prompt(vocab, int(length), seed) for seed, length in enumerate(lengths)]
        prompts = {"train": drawn[: counts["train"]], "test": drawn[counts["train"] :]}
    profile = measure_drafter(cfg, target, action_grid(cfg), drafter, prompts)
    print_profile(profile)
    if options.profile:
        save_json_atomic(options.profile, profile.as_json())
        print(f"wrote {options.profile}")
    if options.json:
        seconds = measure(target)
        figures = {
            "token_ms": 1e3 * profile.autoregressive["token"],
            "verify16_over_one": seconds[16] / seconds[1],
            "verify64_over_one": seconds[64] / seconds[1],
            "level_ms": 1e3 * widest_level_s(profile),
            "error_total": profile.errors["total"],
        }
        rows = [{"nodes": count, "pass_s": value} for count, value in seconds.items()]
        more = {"size": options.size, "profile": profile.as_json()}
        save_record(options.json, "latency", device, profile.dtype, figures, rows, more)


def widest_level_s(profile: LatencyProfile) -> float:
    """Seconds of a drafted level with the largest top_k."""
    return profile.seconds["draft"][f"level, top_k {profile.top_ks[-1]}"]


if __name__ == "__main__":
    main()
