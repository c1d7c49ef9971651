"""Whether faults leave half or other artifacts: `make faults`.

    PYTHONPATH=.:scripts python -m tests.faults [--kills 200] [--others 1] [--seed 0] [--json PATH] [COMMAND ...]

Figures: `trials`, the `kills` in them, up to three in a row, and `others`: a power cut, SIGINT or SIGTERM, a full disk,
a limit on file sizes, a read-only disk, a jumping clock, and two processes at once.  `half_artifacts`, `differing`
artifacts, `leftovers`, and `bad_endings`: tracebacks, wrong exit codes, and commands that do not finish when typed
again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from itertools import chain
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

import torch
from bench_record import save_record
from rich.console import Console
from rich.table import Table

from tests.faults.commands import COMMANDS, open_bench
from tests.faults.faults import Trials, run_all
from tests.faults.serving import kill_learner, kill_server

KINDS = {"half": "half_artifacts", "differs": "differing", "left": "leftovers"}


def run() -> int:
    """Run the faults; the exit code is 1 if something was wrong after one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="default: all")
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="trials with kills, commands taking turns")
    parser.add_argument("--others", type=int, default=1, metavar="N", help="of every other fault of each command")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    commands = [command for command in COMMANDS if not options.commands or command.name in options.commands]
    rows, counts, faults = [], Counter[str](), Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(open_bench(Path(folder)), options.seed)
        kill = {"serve": kill_server, "learn": kill_learner}
        names = [name for name in kill if not options.commands or name in options.commands]
        servers = max(1, options.kills // (20 if commands else len(names))) if names else 0  # trials of each
        kills = max(0, options.kills - servers * len(names)) if commands else 0
        served = (kill[name](trials.bench, trials.chance) for name in names for _ in range(servers))
        for outcome in chain(run_all(trials, commands, kills, options.others), served):
            rows.append(outcome.as_row())
            faults[outcome.command, outcome.fault] += 1
            for problem in outcome.wrong:
                counts[KINDS.get(problem.partition(":")[0], "bad_endings")] += 1
            print(f"{len(rows)}: {outcome.as_row()}", file=sys.stderr, flush=True)
    kinds = sorted({fault for _, fault in faults})
    table = Table("command", *kinds)
    for name in dict.fromkeys(command for command, _ in faults):
        table.add_row(name, *(str(faults[name, kind]) for kind in kinds))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(table)
    kills = sum(moment.endswith(": -9") for row in rows if row["fault"] == "kill" for moment in row["moments"])
    figures = {"trials": len(rows), "kills": kills, "others": sum(row["fault"] != "kill" for row in rows)}
    figures |= {kind: counts[kind] for kind in (*KINDS.values(), "bad_endings")}
    console.print(", ".join(f"{key} {value}" for key, value in figures.items()))
    if options.json:
        save_record(options.json, "faults", torch.device("cpu"), "float32", figures, rows)
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(run())
