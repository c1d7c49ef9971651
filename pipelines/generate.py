"""Answer one prompt, printing the text as it is decoded."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import groupby

from drafterforge.assembly.checks import NO_PROMPT
from drafterforge.assembly.engines import open_engine
from drafterforge.config.progress import console, say
from drafterforge.config.serving import GenerateConfig
from drafterforge.errors import ConfigError, DrafterforgeError
from drafterforge.runtime.rows import Generation
from drafterforge.runtime.sampling import Sampling
from drafterforge.runtime.stopping import TextStream

Config = GenerateConfig
GREEN, RESET = "\x1b[32m", "\x1b[0m"


def run(cfg: Config) -> str:
    """Stream the answer to stdout, and a summary to stderr."""
    if not cfg.prompt and sys.stdin.isatty():
        console.print("type the prompt, then Ctrl-D", markup=False)
    try:
        prompt = cfg.prompt or sys.stdin.read().replace("\r\n", "\n").rstrip("\n")
        prompt.encode()
    except UnicodeError:
        raise ConfigError("the prompt on standard input is not UTF-8; convert it, for example with iconv") from None
    if not prompt.strip():
        raise ConfigError(NO_PROMPT)
    filters = {name: getattr(cfg, name) for name in ("top_k", "top_p", "min_p", "repetition_penalty")}
    sampling = Sampling(temperature=cfg.temperature, seed=cfg.seed, **filters)
    engine, _ = open_engine(cfg)
    coloured = cfg.colour == "always" or (cfg.colour == "auto" and sys.stdout.isatty())
    printer = Printer(engine.target.tokenizer, coloured)
    message = {"role": "user", "content": prompt}
    stop = [text.replace("\\n", "\n").replace("\\t", "\t") for text in cfg.stop]  # shells do not expand them
    for answer in engine.stream([message], cfg.max_new_tokens, sampling, stop):
        printer.show(answer)
    print(flush=True)
    console.print(summary(answer), soft_wrap=True, markup=False)
    try:
        engine.save_state()
    except (DrafterforgeError, OSError) as error:
        say(f"warning: what was learned about the drafters is lost: {error}")
    return answer.text


class Printer:
    """Prints the new text of a growing answer; drafted tokens in green."""

    def __init__(self, tokenizer: object, colour: bool) -> None:
        self.colour, self.stream = colour, TextStream(tokenizer)
        self.num_tokens = self.num_cycles = 0
        self.drafted_tokens: list[bool] = [False]  # the first token comes from the prefill
        self.drafted_chars: list[bool] = []
        self.num_printed = 0  # characters

    def show(self, answer: Generation) -> None:
        """Print the text that was added since the last call."""
        text = answer.text[self.num_printed :]
        if not self.colour:
            print(text, end="", flush=True)
        else:
            self._mark_drafted(answer)
            marks = self.drafted_chars[self.num_printed :] + [False] * len(text)
            for drafted, pairs in groupby(zip(text, marks, strict=False), key=lambda pair: pair[1]):
                span = "".join(char for char, _ in pairs)
                print(f"{GREEN}{span}{RESET}" if drafted else span, end="", flush=True)
        self.num_printed = len(answer.text)

    def _mark_drafted(self, answer: Generation) -> None:
        for cycle in answer.cycles[self.num_cycles :]:
            self.drafted_tokens += [index < cycle.accepted for index in range(cycle.accept_length)]
        self.num_cycles = len(answer.cycles)
        for token, drafted in list(zip(answer.tokens, self.drafted_tokens, strict=True))[self.num_tokens :]:
            self.drafted_chars += [drafted] * len(self.stream.append(token))
        self.num_tokens = len(answer.tokens)


def summary(answer: Generation) -> str:
    total = answer.time_s["total"]
    accepted = sum(cycle.accepted for cycle in answer.cycles)
    drafted = sum(cycle.num_nodes - 1 for cycle in answer.cycles)
    steps = ", ".join(
        f"{name} {answer.time_s[name] / total:.0%}" for name in ("prefill", "draft", "verify", "host") if total
    )
    nodes = f", {accepted} of {drafted} drafted nodes accepted" if drafted else ""
    turns = Counter(cycle.drafter for cycle in answer.cycles if cycle.drafter and cycle.num_nodes > 1)
    drafters = f" ({', '.join(f'{name} {count}' for name, count in turns.most_common())})" if turns else ""
    cycles = f"{len(answer.cycles)} cycles{drafters}"
    return (
        f"{len(answer.tokens)} tokens in {total:.2f} s ({len(answer.tokens) / total:.1f}/s), {cycles}, "
        f"{answer.mat:.2f} tokens a cycle{nodes}; {steps}; stopped at {answer.stop_reason}"
    )
