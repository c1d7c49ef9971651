"""Trains a Re-SpS policy on the wall clock, as its paper does, and compares it with the same policy trained by replay.

    python scripts/check_replay_training.py [--json PATH] [--quick] [--cycles N] [key=value ...]

Keys are those of `drafterforge train-policy`; they begin with experiment=policy_small policy=resps, one environment of
64 decisions that last 2 cycles.  Both trainings have the same network, seed, prompts and budget.  Only run it on an
idle machine: the online rewards are measured seconds.

Figures:
    agreement              share of held-out roots at which both policies choose the same tree
    agreement_of_seeds     the same of two trainings by replay that differ in their seed
    loss_online            1 - tokens/s of the policy trained online over the one trained by replay, replayed
    live_online            tokens/s of the policy trained online over the best static tree, live
    live_replay            tokens/s of the policy trained by replay over the best static tree, live
    cycles_different       measured cycles of the online training whose accept length differs from replay
    seconds_ratio          measured over replayed seconds of these cycles
    seconds_median_error   median relative error of their replayed seconds by answer, after division by this ratio
    training_s_online      seconds of the online training
    training_s_replay      seconds of the training by replay
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from drafterforge.artifacts.folder import open_artifact
from drafterforge.artifacts.locate import find_artifact
from drafterforge.assembly.pools import open_pool
from drafterforge.assembly.runs import fingerprint_of
from drafterforge.config.commands import TrainPolicyConfig
from drafterforge.config.compose import load_config
from drafterforge.config.progress import say
from drafterforge.evaluation.calibration import action_grid, latency_profile
from drafterforge.evaluation.online_environment import OnlineCycle, OnlineEnvironment, OnlineScheduler
from drafterforge.evaluation.policy_comparison import decode_held_out, schedules_of
from drafterforge.evaluation.trace_recording import record_traces
from drafterforge.replay.environment import ShapeEnvironment
from drafterforge.replay.scheduler_actions import logits_of, observations_of
from drafterforge.replay.scheduler_play import schedule_figures
from drafterforge.replay.table import OutcomeTable, build_table
from drafterforge.replay.trace import Traces
from drafterforge.reporting.console import print_live_schedules, print_replayed_schedules
from drafterforge.schedulers.actions import describe
from drafterforge.schedulers.policy import ShapePolicy
from drafterforge.schedulers.spec import PolicySpec
from drafterforge.targets.load import load_target
from drafterforge.training.policies import fit_shape_net, reward_of

import numpy as np
from bench_record import save_record
from rich.console import Console

SETTINGS = ["experiment=policy_small", "policy=resps", "policy.num_envs=1", "policy.num_steps=64"]
SETTINGS += ["policy.train_hold_cycles=2"]
MOST_FREQUENT = 5  # trees of a policy that are printed
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="keys of drafterforge train-policy")
    parser.add_argument("--cycles", type=int, default=8000, help="cycles of either training")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report here")
    parser.add_argument("--quick", action="store_true", help="little of everything, to test the script")
    options = parser.parse_args(arguments)
    cfg: TrainPolicyConfig = load_config("train_policy", TrainPolicyConfig, [*SETTINGS, *options.overrides])
    policy = replace(cfg.policy, total_cycles=64 if options.quick else options.cycles)
    target, grid = load_target(cfg.target), action_grid(cfg)
    _, traces = record_traces(cfg, target)
    traces = traces.with_texts(target.backbone.embedding)
    _, profile = latency_profile(cfg, target, grid)
    drafter, train, test = traces.drafter(cfg.drafter), traces.split("train"), traces.split("test")
    table, observations = build_table(train, grid, drafter, profile), observations_of(train, drafter, policy.parts)

    prompts = [tokens[:begin].tolist() for tokens, begin in zip(train.tokens, train.begins, strict=True)]
    scheduler = OnlineScheduler(grid, policy.parts)
    drafters = open_pool(cfg.runs_dir, target, [cfg.drafter])
    hold_cycles, reward = policy.train_hold_cycles, reward_of(policy)
    online = OnlineEnvironment(
        target,
        (cfg.drafter, drafters[cfg.drafter]),
        scheduler,
        prompts,
        observations.shape[1],
        cfg.traces.max_new_tokens,
        hold_cycles,
        reward,
        cfg.seed,
    )
    environments = {"online": (online, cfg.seed)}
    for name, seed in (("replay", cfg.seed), ("replay, another seed", cfg.seed + 1)):
        environments[name] = ShapeEnvironment(table, observations, 1, hold_cycles, reward, seed), seed
    nets, training_s = {}, {}
    for name, (environment, seed) in environments.items():
        say(f"training {name}: {policy.total_cycles} cycles")
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            try:
                nets[name], _ = fit_shape_net(policy, environment, observations, Path(folder), seed)
            finally:
                if environment is online:
                    online.close()
            training_s[name] = time.perf_counter() - began

    held_out = observations_of(test, drafter, policy.parts)
    actions = {name: logits_of(net, held_out).argmax(axis=1) for name, net in nets.items()}
    manifest = open_artifact(find_artifact(cfg.runs_dir, target.name, "drafters", cfg.drafter), "drafters")
    spec = PolicySpec(
        "shapes",
        "resps",
        target.fingerprint,
        cfg.drafter,
        fingerprint_of(manifest),
        profile.device,
        grid.as_dict(),
        list(policy.parts),
        hold_cycles=hold_cycles,
    )
    policies = {name: ShapePolicy(replace(spec, method=name), nets[name].frozen()) for name in ("online", "replay")}
    schedules = schedules_of(cfg, target, grid, traces, profile, policies)
    replays = [schedule_figures(schedule, test, drafter, profile) for schedule in schedules.values()]
    print_replayed_schedules(replays, profile.device)
    rows, *_ = decode_held_out(cfg, target, test, schedules)
    print_live_schedules(rows)
    rates = {row["name"]: row["tokens_per_s"] for row in replays}
    live = {row["method"]: row["over_best_static"] for row in rows}
    figures = {
        "agreement": share_equal(actions["online"], actions["replay"]),
        "agreement_of_seeds": share_equal(actions["replay, another seed"], actions["replay"]),
        "loss_online": round(1 - rates["policy online"] / rates["policy replay"], 4),
        "live_online": live.get("policy online"),
        "live_replay": live.get("policy replay"),
        **replayed_cycles(online.cycles, train, table),
        "training_s_online": round(training_s["online"], 1),
        "training_s_replay": round(training_s["replay"], 1),
    }
    frequent = {}
    for name, choices in actions.items():
        values, counts = np.unique(choices, return_counts=True)
        order = np.argsort(-counts)[:MOST_FREQUENT]
        frequent[name] = {describe(grid.shapes[values[i]]): round(float(counts[i] / len(choices)), 3) for i in order}
        console.print(f"trees of {name}: " + ", ".join(f"{tree} {share:.0%}" for tree, share in frequent[name].items()))
    for name, value in figures.items():
        console.print(f"{name}: {value}")
    if options.json:
        first = {"trees": frequent, "cycles": policy.total_cycles, "replayed": replays}
        dtype = str(target.dtype).removeprefix("torch.")
        save_record(options.json, "replay_training", target.device, dtype, figures, [first, *rows])


def share_equal(actions: np.ndarray, reference: np.ndarray) -> float:
    return round(float((actions == reference).mean()), 4)


def replayed_cycles(cycles: list[OnlineCycle], train: Traces, table: OutcomeTable) -> dict[str, float]:
    """Measured cycles of the training answers beside the same cycles in replay."""
    at = np.array([(cycle.prompt, cycle.position, cycle.action) for cycle in cycles])
    rows = table.starts[at[:, 0]] + at[:, 1] - train.begins[at[:, 0]]
    index = rows, at[:, 2]
    measured, replayed = np.array([cycle.seconds for cycle in cycles]), table.seconds[index].astype(float)
    different = sum(cycle.tokens != tokens for cycle, tokens in zip(cycles, table.tokens[index], strict=True))
    ratio = measured.sum() / replayed.sum()
    steps = np.diff(at[:, :2], axis=0)
    begins = np.flatnonzero([True, *((steps[:, 0] != 0) | (steps[:, 1] < 0))])  # of answers
    sums = [np.add.reduceat(seconds, begins) for seconds in (measured, replayed)]
    return {
        "cycles_different": int(different),
        "seconds_ratio": round(float(ratio), 4),
        "seconds_median_error": round(float(np.median(np.abs(ratio * sums[1] / sums[0] - 1))), 4),
    }


if __name__ == "__main__":
    main()
