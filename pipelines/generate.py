"""One prompt through the engine, text as it comes."""

from __future__ import annotations

import sys

from drafterforge.artifacts.locate import find_artifact
from drafterforge.data.chat import prompt_ids
from drafterforge.errors import ConfigError
from drafterforge.pipelines.console import say
from drafterforge.pipelines.decode import engine_for, open_drafter
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.shapes import choose_shape
from drafterforge.schema import GenerateConfig
from drafterforge.target.load import load_target

Config = GenerateConfig


def run(cfg: Config) -> str:
    """Stream the answer to stdout, and a summary to stderr."""
    prompt = cfg.prompt or sys.stdin.read()
    if not prompt.strip():
        raise ConfigError('generate needs a prompt: type prompt="..." or pipe text into it')
    target = load_target(cfg.target)
    engine = Engine(target)
    if cfg.drafter:
        hint = f"drafterforge train-drafter domain={cfg.drafter}"
        folder = find_artifact(cfg.runs_dir, target.name, "drafters", cfg.drafter, hint=hint)
        open_drafter(folder, target)
        engine = engine_for(folder, target, choose_shape(cfg.runtime, target.device, target.dtype))
    shown = ""
    for answer in engine.stream(
        prompt_ids(target.tokenizer, [{"role": "user", "content": prompt}]), cfg.max_new_tokens
    ):
        text = target.tokenizer.decode(answer.tokens, skip_special_tokens=True)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # a character may span tokens
            print(text[len(shown) :], end="", flush=True)
            shown = text
    print(text[len(shown) :])
    rate = len(answer.tokens) / answer.time_s["total"]
    say(
        f"{len(answer.tokens)} tokens, {len(answer.cycles)} cycles, {answer.mat:.2f} tokens a cycle, "
        f"{rate:.1f} tokens/s, stopped at {answer.stop_reason}"
    )
    return text
