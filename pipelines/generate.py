"""One prompt through the engine, text as it comes."""

from __future__ import annotations

import sys
from itertools import groupby

from drafterforge.assembly.engines import open_engine
from drafterforge.config.progress import console
from drafterforge.config.serving import GenerateConfig
from drafterforge.errors import ConfigError
from drafterforge.runtime.batch import Generation
from drafterforge.runtime.sampling import Sampling
from drafterforge.runtime.stopping import TextStream

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
    engine, _ = open_engine(cfg)
    coloured = cfg.colour == "always" or (cfg.colour == "auto" and sys.stdout.isatty())
    printer = Printer(engine.target.tokenizer, coloured)
    message = {"role": "user", "content": prompt}
    stop = [text.replace("\\n", "\n").replace("\\t", "\t") for text in cfg.stop]  # shells hand over a backslash
    for answer in engine.stream([message], cfg.max_new_tokens, sampling, stop):
        printer.show(answer)
    print(flush=True)
    console.print(summary(answer), soft_wrap=True, markup=False)
    return answer.text


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
