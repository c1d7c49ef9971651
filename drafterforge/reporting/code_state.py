"""The code behind a report's figures, as hashes, so that a figure older than the code it describes is noticed.

Comments, docstrings and blank lines do not count: only a change of what runs makes a figure old.  A change that can
alter no figure has a line in `EQUAL`, which says why.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
PARTS = {  # name -> files below the package; a file belongs to the first part that names it
    "auto": (  # of `drafter=auto`, which no other way of decoding runs
        "runtime/arm_states.py",
        "runtime/arms.py",
        "runtime/auto_proposer.py",
        "runtime/averages.py",
        "runtime/verify_costs.py",
        "runtime/worth*.py",
    ),
    "sizes": ("targets/shape.py",),  # read by `plan` and `size=auto`, by no decoding
    "drafters": ("drafters/**/*.py",),
    "kernels": ("kernels/*.py", "kernels/*.c", "kernels/*.h"),
    "prices": ("evaluation/calibration.py", "replay/table.py", "schedulers/latency*.py"),  # of a cycle, in replays
    "policy training": ("training/planner.py", "training/policies.py", "training/ppo*.py"),
    "replay": ("replay/*.py",),
    "router": ("router/*.py", "training/router*.py"),
    "runtime": ("runtime/*.py",),
    "schedulers": ("schedulers/*.py",),
    "selectors": ("selectors/**/*.py",),
    "targets": ("targets/*.py",),
    "tree": ("tree/*.py",),
}
EQUAL = {  # hash of a part -> hash of later code that gives the same figures
    "27cc272354cd": "43c85cccb35e",  # drafters: a server's memory; small language models in batches
    "39008d3bdcaf": "d973d126c5a4",  # kernels: spare memory among threads; the capture of CUDA graphs
    "ff0217084b7e": "bd43e303dac1",  # runtime: a server's memory
    "67e6ddf6998f": "1fab23b6e25b",  # targets: where answers of Phi-3 and Mixtral end
    "4f271c4a6f02": "a7bab2f09341",  # policy training: errors that come earlier
    "adb76f85bc0c": "fa62b48938df",  # replay: policy=joint, which has no published figure
    "bcbe0008a364": "af88f7d20e38",  # router: prompts with a system message or several turns
    "bd43e303dac1": "d71ceb4a7ab4",  # runtime: tidied spaces of texts; changes of a pool; rows near the context's end
    "43c85cccb35e": "8aea625bb2d7",  # drafters: targets that rotate a part of their heads
    "d973d126c5a4": "cc4e15933cfa",  # kernels: trees of more than 64 nodes on a CPU; graphs of a second GPU
    "1fab23b6e25b": "e89a43a3a1de",  # targets: errors
    "74416bdf5874": "4926cf2d0362",  # schedulers: errors
    "5c0b53e2eecf": "349ceaca1a3a",  # selectors: arms that never draft
    "fa62b48938df": "1cf7bb4592a6",  # replay: prices, which are a part of their own
    "a7bab2f09341": "699ec11ff532",  # policy training: the same
    "4926cf2d0362": "def8d781e173",  # schedulers: the same
    "99ed51929881": "ef83d368f2e2",  # tree: a name for what is drafted
    "d71ceb4a7ab4": "37890958c0cf",  # runtime: sampling numbers beside CUDA graphs
    "37890958c0cf": "982e4328cf29",  # runtime: who makes the folder of recorded answers
    "ebe4e857fe61": "bd5fb216035a",  # prices: profiles of grids with few narrow trees
    "133cd9f466da": "57b8b57e9dd9",  # sizes: those that a config leaves to its model's class
    "8aea625bb2d7": "2753f77a98c4",  # drafters: which layers a drafter reads; targets with several ropes
    "982e4328cf29": "3bac17e29460",  # runtime: texts with tokens that the target lacks are refused
    "e89a43a3a1de": "1745695c6e33",  # targets: copies of weights for other programs; missing weights
    "bd5fb216035a": "648813f40016",  # prices: which profiles are refused
    "c6471f6e12fc": "2f5bf96a756f",  # auto: when a drafter may be removed
    "2753f77a98c4": "0df3d4ac82e8",  # drafters: target probabilities with a repetition penalty
    "cc4e15933cfa": "c7eb6bf2d1fe",  # kernels: trees of more than 256 nodes on a CPU
    "3bac17e29460": "dd7138b6e8d0",  # runtime: trees of policies on a GPU; drafters that join; errors
    "890451fb99db": "5fd11ae5484c",  # selectors: pools of one drafter
    "349ceaca1a3a": "890451fb99db",  # selectors: states name their drafters
    "af88f7d20e38": "2c4851138c3e",  # router: which router sorts served traffic
    "dd7138b6e8d0": "df33e5639cd5",  # runtime: kinds of requests that a server has learned
    "0df3d4ac82e8": "a8046c2735d8",  # drafters: those that join a pool whose rows keep their features
    "df33e5639cd5": "19653c3b601d",  # runtime: the same
    "a8046c2735d8": "51a8780d7efd",  # drafters: scores on prompts, for hedgespec-prompt alone
    "1cf7bb4592a6": "46245531400f",  # replay: scores on prompts
    "46245531400f": "ea8f025de782",  # replay: an error
    "19653c3b601d": "42ac1624a6a7",  # runtime: scores on prompts
    "42ac1624a6a7": "2c71fb5a58da",  # runtime: pools with a router and hedgespec-prompt
    "5fd11ae5484c": "c50ab6d55c3a",  # selectors: hedgespec-prompt
    "51a8780d7efd": "7809dda8447f",  # drafters: the tree of CPUs with AVX512-BF16; old timings are renewed
    "7809dda8447f": "b01246e05353",  # drafters: an import
    "68d48428cf3d": "43d8b101e432",  # kernels: faster moves of slots; old timings are renewed
    "bd10339eb6cd": "37837a6dc21f",  # auto: a variable's name
    "eed01c68dade": "9a531affaf06",  # kernels: linear layers in a module of their own; models of several dtypes
    "01efba2a68ca": "ad0eaf6785a3",  # kernels: a drafter's layer in a module of its own; names
    "755f4d87f572": "f1e24d85bda5",  # drafters: a variable's name
}
REPLAYED, LIVE = ("drafters", "replay", "tree"), ("drafters", "kernels", "runtime", "targets", "tree")
CHOOSERS = ("", "none", "static", "oracle")  # selectors and schedulers that run no code of their room


def code_state(package: Path = PACKAGE) -> dict[str, str]:
    """The hash of each part of the code."""
    return dict(_code_state(package))


@cache
def _code_state(package: Path) -> Mapping[str, str]:
    assigned: set[Path] = set()
    states = {}
    for name, patterns in PARTS.items():
        paths = {path for pattern in patterns for path in package.glob(pattern)} - assigned
        assigned |= paths
        states[name] = _hash(package, sorted(paths))
    return states


def parts_behind(*, live: bool, selector: str, schedule: str) -> list[str]:
    """The parts of the code that decide the figures of a row of any method but `drafter=auto`."""
    parts = list(LIVE if live else REPLAYED)
    parts += ["selectors"] if selector not in (*CHOOSERS, "router") else []
    parts += ["router"] if selector == "router" else []
    parts += ["schedulers", "policy training", "prices"] if schedule not in CHOOSERS else []
    return parts


def changed_parts(measured: Mapping[str, str], present: Mapping[str, str], parts: Sequence[str]) -> list[str]:
    """Those of the parts whose code is not the code that was measured, nor `EQUAL` to it."""
    return [name for name in parts if latest(str(measured.get(name))) != latest(present[name])]


def latest(digest: str) -> str:
    """The hash of the latest code that gives the same figures as the code with this one."""
    while digest in EQUAL:
        digest = EQUAL[digest]
    return digest


def _hash(package: Path, paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        digest.update(path.relative_to(package).as_posix().encode() + b"\n")
        digest.update((statements(text) if path.suffix == ".py" else text).encode())
    return digest.hexdigest()[:12]


def statements(source: str) -> str:
    """Python source without comments, docstrings and blank lines."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines[first.lineno - 1 : first.end_lineno] = [""] * (first.end_lineno - first.lineno + 1)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())
