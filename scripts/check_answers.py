"""Compare a server's greedy answers with those of the target in this process, token by token.

    python scripts/check_answers.py http://127.0.0.1:8000/v1 [--prompts 64] [--target FOLDER] [--model NAME]

Start the server with the same target in float32: `drafterforge serve target.dtype=float32`, or
`vllm serve FOLDER --dtype float32`.  Prompts are held-out ones of the built-in grammars.  Each difference is shown with
its margin: what the target's logits of the two tokens differ by, in this process, where the answers part.  Programs add
in another order, so an answer may part at a margin near 0.  The exit code is 1 if one parts at a larger margin than
--margin.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from drafterforge.config.data import POOL_DOMAINS, DataConfig
from drafterforge.config.target import TargetConfig
from drafterforge.data.endpoint_answerer import ServedAnswerer
from drafterforge.errors import DrafterforgeError
from drafterforge.evaluation.held_out import held_out_prompts
from drafterforge.targets.answer import BatchAnswerer
from drafterforge.targets.gaps import logit_gaps
from drafterforge.targets.load import load_target

from bench_record import save_record
from rich.console import Console
from rich.table import Table

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 1 if an answer differs by more than a near tie."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="address of the server, as http://HOST:PORT/v1")
    parser.add_argument("--model", default="", help="the target's name on the server; empty: its only model")
    parser.add_argument("--target", default="", help="folder or hub id of the target; empty: smollm2-135m")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--concurrency", type=int, default=32, help="requests at a time")
    parser.add_argument("--margin", type=float, default=1e-3, help="largest margin of a near tie")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args(arguments)
    hub = {"name": "checked", "source": "hf", "model": args.target} if args.target else {}
    target = load_target(TargetConfig(dtype="float32", **hub), tapped=False)
    prompts = held_out_prompts(target, args.prompts, POOL_DOMAINS)
    data = DataConfig(
        answers="served", endpoint=args.url, served_model=args.model, batch_size=args.concurrency, num_test=len(prompts)
    )
    answerer = ServedAnswerer(
        target.tokenizer, data, target.eos_ids, lambda *_: None, lambda ids, start: logit_gaps(target, ids, start)
    )
    began = time.perf_counter()
    answers = answerer(prompts, args.max_new_tokens, seed=0)
    seconds = time.perf_counter() - began
    local = BatchAnswerer(target, 16)(prompts, args.max_new_tokens, 0)

    rows, left_out = [], 0
    for number, (prompt, answer, expected) in enumerate(zip(prompts, answers, local, strict=True)):
        if answer == expected:
            continue
        if not answer:
            left_out += 1
            continue
        shared = next((i for i, pair in enumerate(zip(answer, expected, strict=False)) if pair[0] != pair[1]), None)
        if shared is None:
            rows.append((number, min(len(answer), len(expected)), "the end", "", float("inf")))
            continue
        margin = logit_gaps(target, prompt + expected[:shared] + answer[shared : shared + 1], len(prompt))[-1]
        texts = (repr(target.tokenizer.decode(ids[shared : shared + 1])) for ids in (answer, expected))
        rows.append((number, shared, *texts, margin))
    num_tokens = sum(map(len, answers))
    figures = {
        "prompts": len(prompts),
        "equal": len(prompts) - len(rows) - left_out,
        "left_out": left_out,
        "tokens": num_tokens,
        "without_token_ids": answerer.num_texts,
        "largest_margin": max((row[-1] for row in rows), default=0.0),
        "tokens_per_s": round(num_tokens / seconds, 1),
    }
    if rows:
        table = Table("prompt", "differs at token", "server", "in process", "margin")
        for *words, margin in rows:
            table.add_row(*map(str, words), f"{margin:.2g}")
        console.print(table)
    console.print(
        f"{figures['equal']} of {len(prompts)} answers of {answerer.model} are equal ({num_tokens} tokens, "
        f"{figures['tokens_per_s']} tokens/s); largest margin of a difference: {figures['largest_margin']:.2g}; "
        f"{answerer.num_texts} texts without token ids, {left_out} of them left out"
    )
    if args.json:
        save_record(args.json, "answers", target.device, "float32", figures)
    return int(figures["largest_margin"] > args.margin)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DrafterforgeError as error:
        sys.exit(f"check_answers: {error}")
