"""The steps of `gpu_report.py`: processes, what they write, and when that is a success."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("hydra", "omegaconf", "datasets", "gguf", "peft", "lightning")  # without them a test is `unavailable`
MISSING = re.compile(rf"No module named '({'|'.join(LIBRARIES)})[.']")
SHIPPED = "drafterforge/shipped/smollm2-135m/drafters"
Report = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A process and what it writes."""

    name: str
    command: str  # after `python`; {output} is the file that it writes
    quick: str  # the same at tiny sizes
    figures: tuple[str, ...]  # shown in the table
    expected_s: int = 120  # a guess, for --within
    embedded: bool = False  # whether it needs the weights of the embedded target
    report: str = ""  # name in docs/reports
    read: Callable[[Path], Report] = lambda path: json.loads(path.read_text())
    passes: Callable[[Report, str, int], bool] = lambda report, device, code: code == 0  # whether it succeeded


def lossless(name: str, dtype: str) -> Step:
    """Losslessness in a dtype."""
    options = f"--datastore {SHIPPED}/store --pool general+store,sql,math+store,chat"
    command = f"scripts/check_lossless.py drafter={SHIPPED}/general {options} --dtype {dtype}"
    return Step(
        f"lossless-{dtype}",
        f"{command} --prompts 64 --max-batch 16 --json {{output}}",
        f"{command} --prompts 2 --max-new-tokens 8 --json {{output}}",
        ("num_prompts", "num_tokens", "mismatches"),
        embedded=True,
        report=name,
    )


def steps_at(name: str, size: str, options: str, quick_options: str, **settings: Any) -> Step:
    """`bench_steps.py` at a size."""
    return Step(
        f"steps-{name}",
        f"scripts/bench_steps.py --size {size} {options} --json {{output}}",
        f"scripts/bench_steps.py --rounds 1 {quick_options} --json {{output}}",
        ("mat", "speedup", "host_share", "pool_over_one", "graphs_over_eager", "peak_memory_gb"),
        report=f"steps-{name}",
        **settings,
    )


def read_tests(path: Path) -> Report:
    """Counts of the tests in pytest's XML; `unavailable` ones need a library that is not installed."""
    counts = dict.fromkeys(("passed", "failed", "skipped", "unavailable"), 0)
    rows = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        problem = next((part for part in case if part.tag in ("failure", "error", "skipped")), None)
        outcome, text = "passed", ""
        if problem is not None:
            text = " ".join([problem.get("message") or "", problem.text or ""])
            outcome = "skipped" if problem.tag == "skipped" else "unavailable" if MISSING.search(text) else "failed"
        counts[outcome] += 1
        rows.append({"test": case.get("name"), "outcome": outcome})
    return {"bench": "gpu-tests", "created": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())} | {
        "figures": counts,
        "rows": rows,
    }


def tests_pass(report: Report, device: str, code: int) -> bool:
    """No test failed, and on a GPU at least one passed; pytest's exit code counts unavailable tests as failed."""
    figures = report["figures"]
    return figures["failed"] == 0 and (figures["passed"] > 0 or device.startswith("cpu"))


def test_files() -> str:
    """The files with tests that need a GPU; others are not imported, because they need more libraries."""
    files = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text())
    return " ".join(str(path.relative_to(ROOT)) for path in files)


def pool(name: str, report: str, options: str, quick_options: str, embedded: bool = False) -> Step:
    """`bench_pool.py`."""
    return Step(
        f"pool-{name}",
        f"scripts/bench_pool.py {options}--json {{output}}",
        f"scripts/bench_pool.py {quick_options}--quick --json {{output}}",
        ("lora8_over_one", "full8_over_one", "selection_share", "pool_share", "cycle_ms"),
        embedded=embedded,
        report=report,
    )


def latency(name: str, size: str, quick_options: str, embedded: bool = False) -> Step:
    """`bench_latency.py` at a size."""
    return Step(
        f"latency-{name}",
        f"scripts/bench_latency.py --size {size} --json {{output}}",
        f"scripts/bench_latency.py {quick_options} --quick --json {{output}}",
        ("token_ms", "verify16_over_one", "verify64_over_one", "level_ms", "error_total"),
        embedded=embedded,
        report=f"latency-{name}",
        expected_s=180,
    )


def all_steps() -> list[Step]:
    """The steps, in the order in which they run; those without weights of a real model come first."""
    pytest = f"-P -m pytest -q -m gpu -p no:cacheprovider --junitxml {{output}} {test_files()}"
    decode = f"scripts/bench_decode.py drafter={SHIPPED}/general"
    rated, tiny = "--mat 3 --cycles 40", "--vocab 64 --context 24"
    tests = ("passed", "failed", "skipped", "unavailable")
    return [
        Step("gpu-tests", pytest, pytest, tests, report="gpu-tests", read=read_tests, passes=tests_pass),
        steps_at("8b", "llama3.1-8b", rated, f"--size tiny {tiny} --cycles 6 --mat 2"),
        steps_at("32b", "qwen3-32b", rated, f"--size tiny-qwen3 {tiny} --cycles 6 --mat 2", expected_s=240),
        pool("8b", "pool-8b", "--size llama3.1-8b --vocab 32000 ", "--size tiny --vocab 64 "),
        latency("8b", "llama3.1-8b", f"--size tiny {tiny}"),
        Step(
            "train",
            "scripts/bench_train.py --json {output}",
            "scripts/bench_train.py --quick --json {output}",
            ("answer_tokens_per_s", "ratio_to_speculators", "peak_memory_gb"),
            report="bench_train",
        ),
        steps_at("embedded", "embedded", "--cycles 10 --rounds 8", "--size embedded --cycles 4", embedded=True),
        lossless("lossless-general", "float32"),
        lossless("lossless-bfloat16", "bfloat16"),
        Step(
            "decode",
            f"{decode} --prompts 24 --max-new-tokens 96 --invariant-prompts 8 --json {{output}}",
            f"{decode} --quick --invariant-prompts 0 --no-peers --json {{output}}",
            ("best_over_hf_generate", "host_share", "verify16_over_one", "mismatches_fp32", "mismatches_invariant"),
            expected_s=240,
            embedded=True,
            report="bench_decode",
        ),
        pool("embedded", "bench_pool", "", "", embedded=True),
        latency("embedded", "embedded", "--size embedded", embedded=True),
    ]
