"""Whether readers of strangers' files and requests stand malformed inputs: `make fuzz`.

    PYTHONPATH=.:scripts python -m tests.fuzz [--count 10000] [--seed 0] [--json PATH] [READER ...]

Figures: `inputs` in all, of so many `readers`, and how many of them ended in a `traceback`, a `hang` of more than 5 s,
`memory` beyond twice the input and 32 MiB, a `write` outside the reader's folder, a `program` or connection, a `crash`
of the process, or a `message` of more than a line.  Inputs that fail stay in the folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

import torch
from bench_record import save_record
from rich.console import Console
from rich.table import Table

from tests.fuzz.harness import KINDS, fuzz
from tests.fuzz.readers import READERS


def run() -> int:
    """Fuzz the readers; the exit code is 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"of {', '.join(READERS)}; default: all")
    parser.add_argument("--count", type=int, default=10_000, metavar="N", help="inputs of each reader")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the inputs")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"), help="where inputs that fail stay")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shutil.rmtree(options.folder, ignore_errors=True)
    table = Table("reader", "inputs", "accepted", "refused", "slowest", "memory", *KINDS)
    rows = []
    for name in options.readers or READERS:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            count = fuzz(READERS[name](Path(folder)), options.count, options.seed, options.folder)
        row = {**count.as_row(), "seconds": round(time.perf_counter() - began, 1)}
        rows.append(row)
        cells = [str(row[key]) for key in ("reader", "inputs", "accepted", "refused")]
        cells += [f"{row['slowest_s']:.2f} s", f"{row['memory_mb']:.0f} MiB", *(str(row[kind]) for kind in KINDS)]
        table.add_row(*cells)
        print(f"{name}: {row}", file=sys.stderr, flush=True)
        for text, path in count.examples.items():
            print(f"  {path}: {text}", file=sys.stderr, flush=True)
    Console(highlight=False, width=None if sys.stdout.isatty() else 150).print(table)
    figures = {"readers": len(rows), "inputs": sum(row["inputs"] for row in rows)}
    figures |= {kind: sum(row[kind] for row in rows) for kind in KINDS}
    if options.json:
        save_record(options.json, "fuzz", torch.device("cpu"), "float32", figures, rows)
    return int(any(figures[kind] for kind in KINDS))


if __name__ == "__main__":
    sys.exit(run())
