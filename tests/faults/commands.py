"""Long commands on a tiny target, and the runs that they start from."""

from __future__ import annotations

from pathlib import Path

from drafterforge.cli import main
from tests.faults.harness import Bench, Command
from tests.tiny import save_tiny_target

SMOKE = ("experiment=smoke", "eval.num_prompts=1", "eval.max_new_tokens=4", "eval.chain=false")
TRAIN = ("train-drafter", "domain=sql", "answers=sql", *SMOKE)
LORA = ("drafter=lora", "drafter.init=sql", "drafter.lora.rank=4")
POLICY = ("train-policy", "experiment=smoke", "drafter=sql", "latency=a100-8b", "live.num_prompts=0")
DECODING = ("experiment=smoke", "suite.domains=[sql,math]")


def _policy(name: str, *more: str) -> Command:
    return Command(name, (*POLICY, f"policy={name}", *more), ("traces/sql", f"policies/{name}"))


COMMANDS = (
    Command("prepare-data", ("prepare-data", "domain=math", "experiment=smoke"), ("answers/math",)),
    Command("eagle3", (*TRAIN, "name=again", "trainer.max_steps=6"), ("drafters/again",)),
    Command("lora", (*TRAIN, *LORA, "name=expert"), ("drafters/expert",)),
    Command("block", (*TRAIN, "drafter=block", "name=blocks"), ("drafters/blocks",)),
    Command("causal_lm", (*TRAIN, "drafter=causal_lm", "name=small"), ("drafters/small",)),
    Command("retrieval", (*TRAIN, "drafter=retrieval", "name=store"), ("drafters/store",)),
    _policy("planner"),
    _policy("resps"),
    _policy("ltd"),
    _policy("marginal"),
    Command("calibrate", ("calibrate", "experiment=smoke", "drafter=sql"), ("latency/sql",)),
    Command("bundle", ("export", "bundle=house"), ("bundles/house",)),
    Command("archive", ("export", "bundle=tarred", "format=tar", "overwrite=true"), ("bundles/tarred.tar",)),
    Command("sglang", ("export", "format=sglang"), ("exports/sql-sglang",)),
    Command("eval", ("eval", "suite=domains", *DECODING, "pool.drafters=[sql,retrieval]"), ("reports/domains",)),
)


def open_bench(folder: Path) -> Bench:
    """A tiny target with a trained drafter."""
    target, base = save_tiny_target(folder / "target" / "tiny"), folder / "base"
    options = ("target=hf", f"target.model={target}", "target.name=tiny", "target.dtype=float32")
    code = main(["train-drafter", "domain=sql", *SMOKE, *options, f"runs_dir={base}"])
    assert code == 0
    return Bench(base, folder, options)
