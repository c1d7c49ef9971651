"""One prompt through the engine, text as it comes."""

from __future__ import annotations

import sys
from itertools import groupby

from drafterforge.artifacts.locate import artifact_dir
from drafterforge.bundle.open import open_bundle
from drafterforge.bundle.record import BUNDLE
from drafterforge.errors import ConfigError
from drafterforge.pipelines.console import console
from drafterforge.pipelines.decode import load_any_drafter
from drafterforge.pipelines.pool import build_pool, scheduled
from drafterforge.runtime.batch import Generation
from drafterforge.runtime.engine import Engine, kind_of_drafter
from drafterforge.runtime.sampling import Sampling
from drafterforge.runtime.shapes import choose_shape
from drafterforge.runtime.stopping import TextStream
from drafterforge.schema import GenerateConfig
from drafterforge.target.load import load_target

Config = GenerateConfig
GREEN, RESET = "\x1b[32m", "\x1b[0m"


def run(cfg: Config) -> str:
    """Stream the answer to stdout, and a summary to stderr."""
    if not cfg.prompt and sys.stdin.isatty():
        console.print("type the prompt, then Ctrl-D", markup=False)
    prompt = cfg.prompt or sys.stdin.read().rstrip("\n")
    if not prompt.strip():
        raise ConfigError('generate needs a prompt: type prompt="..." or pipe text into it')
    filters = {name: getattr(cfg, name) for name in ("top_k", "top_p", "min_p", "repetition_penalty")}
    sampling = Sampling(temperature=cfg.temperature, seed=cfg.seed, **filters)
    engine = open_engine(cfg)
    coloured = cfg.colour == "always" or (cfg.colour == "auto" and sys.stdout.isatty())
    printer = Printer(engine.target.tokenizer, coloured)
    message = {"role": "user", "content": prompt}
    for answer in engine.stream([message], cfg.max_new_tokens, sampling, cfg.stop):
        printer.show(answer)
    print(flush=True)
    console.print(summary(answer), soft_wrap=True, markup=False)
    return answer.text


def open_engine(cfg: Config, max_batch: int = 8) -> Engine:
    """The engine that is configured: a bundle's, or the target with a drafter or a pool from `runs_dir`."""
    if cfg.bundle:
        return open_named_bundle(cfg, max_batch)
    target = load_target(cfg.target)
    if cfg.drafter == "pool":
        drafter, shape = build_pool(cfg.pool, cfg.runtime, cfg.runs_dir, target)
    else:
        drafter = load_any_drafter(cfg, target)
        shape = choose_shape(cfg.runtime, target.device, target.dtype, kind_of_drafter(drafter))
        drafter = scheduled(cfg.pool, cfg.runs_dir, target, cfg.drafter, drafter)
    return Engine(target, drafter, shape, max_batch, cfg.runtime.numerics)


def open_named_bundle(cfg: Config, max_batch: int = 8) -> Engine:
    """The engine of a bundle given by name, path or hub id; what the command line says comes before its defaults."""
    named = artifact_dir(cfg.runs_dir, cfg.target.name, "bundles", cfg.bundle) if plain(cfg.bundle) else None
    path = named if named is not None and (named / BUNDLE).is_file() else cfg.bundle
    given = cfg.target if cfg.target.source == "hf" else None
    where = {"device": cfg.target.device, "dtype": cfg.target.dtype}
    numerics = "" if cfg.runtime.numerics == "auto" else cfg.runtime.numerics
    drafter = "" if cfg.drafter == "pool" else cfg.drafter
    return open_bundle(path, target=given, drafter=drafter, numerics=numerics, max_batch=max_batch, **where)


def plain(name: str) -> bool:
    """Whether a text can be the name of an artifact, not only a path."""
    return "/" not in name and not name.startswith((".", "~"))


class Printer:
    """Prints what is new of a growing answer; drafted tokens in green."""

    def __init__(self, tokenizer: object, colour: bool) -> None:
        self.colour, self.stream = colour, TextStream(tokenizer)
        self.num_tokens = self.num_cycles = 0
        self.drafted: list[bool] = [False]  # of every token; the first comes from the prefill
        self.origin: list[bool] = []  # of every character
        self.shown = 0

    def show(self, answer: Generation) -> None:
        """Print the text that has come since the last call."""
        new = answer.text[self.shown :]
        if not self.colour:
            print(new, end="", flush=True)
        else:
            self._trace(answer)
            origin = self.origin[self.shown :] + [False] * len(new)
            for drafted, part in groupby(zip(new, origin, strict=False), key=lambda pair: pair[1]):
                text = "".join(char for char, _ in part)
                print(f"{GREEN}{text}{RESET}" if drafted else text, end="", flush=True)
        self.shown = len(answer.text)

    def _trace(self, answer: Generation) -> None:
        """Note of every character whether it was drafted."""
        for cycle in answer.cycles[self.num_cycles :]:
            self.drafted += [place < cycle.accepted for place in range(cycle.accept_length)]
        self.num_cycles = len(answer.cycles)
        for token, drafted in list(zip(answer.tokens, self.drafted, strict=True))[self.num_tokens :]:
            self.origin += [drafted] * len(self.stream.append(token))
        self.num_tokens = len(answer.tokens)


def summary(answer: Generation) -> str:
    """One line of figures."""
    total = answer.time_s["total"]
    accepted = sum(cycle.accepted for cycle in answer.cycles)
    drafted = sum(cycle.num_nodes - 1 for cycle in answer.cycles)
    steps = ", ".join(
        f"{name} {answer.time_s[name] / total:.0%}" for name in ("prefill", "draft", "verify", "host") if total
    )
    found = f", {accepted} of {drafted} drafted nodes accepted" if drafted else ""
    return (
        f"{len(answer.tokens)} tokens in {total:.2f} s ({len(answer.tokens) / total:.1f}/s), "
        f"{len(answer.cycles)} cycles, {answer.mat:.2f} tokens a cycle{found}; {steps}; stopped at {answer.stop_reason}"
    )
