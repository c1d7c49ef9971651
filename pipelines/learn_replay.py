"""Replay a log of requests with and without learning from it, and report what learning brings."""

from __future__ import annotations

from pathlib import Path

from drafterforge.config.compose import to_dict
from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.learn import LearnCommandConfig
from drafterforge.config.progress import bar, table_console
from drafterforge.data.chat import prompt_ids
from drafterforge.data.sources import jsonl_rows
from drafterforge.evaluation.held_out import held_out_prompts
from drafterforge.evaluation.traffic_replay import EXPERTS, LEARNING, PLAIN, TrafficReplay
from drafterforge.pipelines.learn import describe
from drafterforge.pipelines.train_drafter import train
from drafterforge.reporting.artifact import require_lossless, write_report
from drafterforge.reporting.console import print_table
from drafterforge.runtime.numerics import choose_numerics
from drafterforge.targets.load import load_target

Config = LearnCommandConfig


def run(cfg: Config) -> Path:
    rows = [*jsonl_rows(cfg.path)][: cfg.limit or None]
    target = load_target(cfg.target)
    room = target.max_positions - cfg.max_new_tokens
    prompts = [prompt_ids(target.tokenizer, list(row.messages)) for row in rows]
    prompts = [prompt for prompt in prompts if len(prompt) <= room]
    replay = TrafficReplay(cfg, target, train)
    old_prompts = held_out_prompts(target, cfg.old_prompts, POOL_DOMAINS) if cfg.old_prompts else []
    with bar("replaying requests", len(prompts) + len(old_prompts)) as progress:
        traffic = replay.run(prompts, old_prompts, lambda: progress.advance(1))
    count, last = len(prompts), min(100, max(len(prompts) // 3, 1))
    parts = {"all requests": slice(count), f"last {last} requests": slice(count - last, count)}
    parts |= {"other domains afterwards": slice(count, None)} if old_prompts else {}
    numerics = choose_numerics("auto", target)
    report, path = write_report(
        cfg.runs_dir,
        target,
        cfg.name,
        suite="replayed traffic",
        seed=cfg.seed,
        numerics=numerics,
        rows=traffic.rows(parts, str(target.dtype).removeprefix("torch."), numerics),
        curves=traffic.curves,
        config={"learn": to_dict(cfg.learn), "max_new_tokens": cfg.max_new_tokens, "requests": len(prompts)},
        parents=[],
    )
    print_table(report, table_console())
    for count, version in traffic.learned:
        print(f"after {count} requests: {describe(version)}")
    for title in [*parts][1:]:
        rates = {row["method"]: row["tokens_per_s"] for row in report["rows"] if row["domain"] == title}
        gains = ", ".join(f"{rates[name] / rates[PLAIN]:.3f}x with {name[6:]}" for name in (EXPERTS, LEARNING))
        print(f"{title}, tokens/s over those without learning: {gains}")
    print(f"wrote {path}")
    require_lossless(report, path)
    return path
