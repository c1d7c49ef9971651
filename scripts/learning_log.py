"""Write a log of requests for `drafterforge learn replay`: those of one source, alone or among requests that poison it.

    python scripts/learning_log.py PROMPTS.jsonl log.jsonl --source advising --requests 600
    python scripts/learning_log.py PROMPTS.jsonl poisoned.jsonl --source advising --requests 400 --poison random=0.5
    drafterforge learn replay log.jsonl runs_dir=replayed old_prompts=48 "seeds=[1,2]"

PROMPTS.jsonl has lines of {"messages": [...]} or {"prompt": ...}, with `source` and `licence`.  `--without FILE` leaves
out the prompts of another such file, for example those that a report is measured on.  `--poison KIND=SHARE` replaces a
share of the requests by others: `random` ones ask about random tokens, each about its own; those of a `flood` are all
the same.  The domain of a line is `traffic`, or the kind of poison, so the replay reports them apart.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from drafterforge.config.target import TargetConfig
from drafterforge.data.sources import EXAMPLE, json_lines, parse_messages
from drafterforge.errors import DrafterforgeError
from drafterforge.targets.load import load_text_target

KINDS = ("random", "flood")
TOKENS = 64  # of a request about random tokens


def main() -> int:
    """Write the log, and print what it holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, help="file of prompts")
    parser.add_argument("log", type=Path, help="file to write")
    parser.add_argument("--source", default="", help="only prompts whose source contains this text")
    parser.add_argument("--without", type=Path, action="append", default=[], metavar="FILE", help="of other prompts")
    parser.add_argument("--requests", type=int, default=600, help="lines to write")
    parser.add_argument("--poison", default="", metavar="KIND=SHARE", help=f"{' or '.join(KINDS)}, and its share")
    parser.add_argument("--seed", type=int, default=0, help="of the order and the poison")
    options = parser.parse_args()
    try:
        lines = requests(options)
    except DrafterforgeError as error:
        print(error, file=sys.stderr)
        return 2
    options.log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    counts = Counter((line["domain"], line["source"], line["licence"]) for line in lines)
    for (domain, source, licence), number in counts.items():
        print(f"{number:5} {domain}: {source}, {licence}")
    return 0


def number_of(text: str) -> float:
    """The number that a text is; nan if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def requests(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The lines of the log; DrafterforgeError if there are too few prompts."""
    kind, _, share = options.poison.partition("=")
    if options.poison and (kind not in KINDS or not 0 < number_of(share) < 1):
        raise DrafterforgeError(f"--poison={options.poison} must be random=SHARE or flood=SHARE, with SHARE in (0, 1)")
    excluded = [row["messages"] for path in options.without for row in read(path)]
    rows = [row for row in read(options.prompts) if options.source in row["source"] and row["messages"] not in excluded]
    poisoned = round(options.requests * float(share)) if options.poison else 0
    traffic = options.requests - poisoned
    if len(rows) < traffic:
        where = f" of a source with {options.source!r}" if options.source else ""
        raise DrafterforgeError(f"{options.prompts} has {len(rows)} prompts{where}, and {traffic} are needed")
    chance = random.Random(options.seed)
    lines = chance.sample(rows, traffic)
    tokenizer = load_text_target(TargetConfig()).tokenizer if poisoned else None
    flood = random_text(tokenizer, chance) if poisoned else ""
    for _ in range(poisoned):
        content = flood if kind == "flood" else random_text(tokenizer, chance)
        messages = [{"role": "user", "content": content}]
        line = {"messages": messages, "domain": kind, "source": "random tokens", "licence": "none needed"}
        lines.insert(chance.randrange(len(lines) + 1), line)
    return lines


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of the log that a file of prompts stands for."""
    return [*json_lines(path, parse, EXAMPLE, "name a JSONL file")]


def parse(row: dict[str, Any], _: int) -> dict[str, Any]:
    """A line of the log from one of prompts."""
    messages = parse_messages(row.get("messages", row.get("prompt")))
    names = {key: str(row.get(key, "not named")) for key in ("source", "licence")}
    return {"messages": [*messages], "domain": "traffic", **names}


def random_text(tokenizer: Any, chance: random.Random) -> str:
    """A request to repeat random tokens."""
    ids = [chance.randrange(len(tokenizer)) for _ in range(TOKENS)]
    return f"Continue this text: {tokenizer.decode(ids, skip_special_tokens=True)}"


if __name__ == "__main__":
    sys.exit(main())
