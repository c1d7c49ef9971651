#!/usr/bin/env python3
"""Rewrites the file tree in README.md from each file's first line of documentation; --check only compares."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START, END = "```text tree\n", "```"
PLAIN = {
    "pyproject.toml": "package, dependencies, ruff, pytest and import contracts",
    "constraints.txt": "exact versions that set-up installs",
    "Makefile": "help, format, check, rooms, unit, test, quickstart",
    "CHANGELOG.md": "what each landing changed",
    "LICENSE": "Apache-2.0",
    ".ci/run": "what has to hold before a change lands",
    ".pre-commit-config.yaml": "ruff before each commit",
}
DATA = {
    "drafterforge/evaluation/published.json": "the numbers themselves",
}
WEIGHTS = "drafterforge/shipped"  # artifacts, of which one line tells
FOLDERS = {
    WEIGHTS: "generalist and LoRA experts of the embedded target, found by name where runs/ has none",
    "docs": "what was measured",
    "docs/figures": "what docs/distillation.md shows",
    "docs/reports": "what commands wrote; README's tables are made of it",
    "scripts": "set-up, tests, benchmarks",
    "scripts/clients": "run by the environments of other programs, to compare what they do with what we do",
    "tests/external": "other programs open our exports; `pytest -m external`",
    "configs": "hydra groups; YAML only picks values of the dataclasses in schema.py",
    "configs/data": "where prompts come from",
    "configs/domain": "which traffic",
    "configs/drafter": "architecture and start of the drafter",
    "configs/eval": "held-out decoding",
    "configs/experiment": "named sets of overrides",
    "configs/grid": "tree shapes that a scheduler chooses from",
    "configs/latency": "how a device's costs are measured",
    "configs/live": "held-out decoding of what was trained",
    "configs/policy": "which scheduler or router is trained, and how",
    "configs/pool": "which drafters decode together",
    "configs/runtime": "tree shape",
    "configs/suite": "what `eval` decodes",
    "configs/target": "which big model",
    "configs/traces": "what is recorded for schedulers",
    "configs/trainer": "distillation settings",
    "tests": "mirrors the rooms; names state laws",
}


def summary(path: str) -> str:
    """First sentence of a module's docstring, or of the first comment of a script or of a file in C."""
    if path in DATA:
        return DATA[path]
    text = (ROOT / path).read_text()
    if path.endswith(".py"):
        return " ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split()).rstrip(".")
    if path.endswith(".c"):
        return " ".join(text.removeprefix("/*").split("*/")[0].replace("\n *", " ").split()).split(": ")[0].rstrip(".")
    return next((line[2:].rstrip(".") for line in text.splitlines() if line.startswith("# ")), "")


def tree() -> str:
    """The tree, one line per file; the choices of a config group share a line, as reports do."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [name for name in listed.stdout.split() if (ROOT / name).is_file()]
    lines = [line(name, 0, text) for name, text in PLAIN.items()]
    for top in ("scripts", "pipelines", "drafterforge", "configs", "tests", "docs"):
        lines += folder(top, [name for name in files if name.startswith(f"{top}/")], 0)
    return "\n".join(lines) + "\n"


def folder(path: str, files: list[str], depth: int) -> list[str]:
    """Lines of a folder: its own files, then its sub-folders."""
    own = sorted(name for name in files if "/" not in name[len(path) + 1 :] and not name.endswith("__init__.py"))
    text = FOLDERS.get(path) or (summary(f"{path}/__init__.py") if f"{path}/__init__.py" in files else "")
    if path.startswith(("configs/", "docs/")):
        return [line(f"{Path(path).name}/", depth, f"{text}: {', '.join(Path(name).stem for name in own)}")]
    lines = [line(f"{Path(path).name}/", depth, text)]
    if path == WEIGHTS:
        return lines
    lines += [line(Path(name).name, depth + 1, summary(name)) for name in own]
    below = {name[len(path) + 1 :].split("/")[0] for name in files if "/" in name[len(path) + 1 :]}
    for name in sorted(below):
        inside = f"{path}/{name}"
        lines += folder(inside, [file for file in files if file.startswith(f"{inside}/")], depth + 1)
    return lines


def line(name: str, depth: int, text: str) -> str:
    """One line of the tree."""
    return f"{'  ' * depth}{name:<{32 - 2 * depth}} {text}".rstrip()


def main() -> int:
    """Rewrite, or with --check say whether the tree is current."""
    readme = ROOT / "README.md"
    text = readme.read_text()
    start = text.index(START) + len(START)
    fresh = text[:start] + tree() + text[text.index(END, start) :]
    if "--check" in sys.argv:
        if fresh != text:
            print("README.md: the tree is out of date; type `python scripts/readme_tree.py`", file=sys.stderr)
        return int(fresh != text)
    readme.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
