"""Minutes of the papers' steps, from what their commands do: answers, traces, trainings and timed requests.

The constants are of an EPYC with AVX-512 and bfloat16.  Answers and timed decoding were measured on two cores, traces
and trainings as the processor time of one, so that two need less.  Estimated are starts of commands, features of
answers, `planner` and `marginal`, answers of 32 drafters, and the mean tree of a policy.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence

from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.names import parse_tree
from drafterforge.reporting.papers.step import Step

COMMAND_S, REPLAYS_S = 30.0, 45.0  # start and report of a command; tables, schedules and bounds of `train-policy`
ANSWER_S, READ_S = 0.35, 0.1  # the target answers a prompt, eight at a time; it reads a prompt
DRAFTS_S, PLAY_S = 0.12, 0.007  # of an answer: a drafter drafts at every position; a selector is replayed
POSITIONS = 104  # of an answer
POSITION_S = {"resps": 0.060, "ltd": 0.027}  # all trees of a paper's grid are drafted at a position
PROFILED = 52  # answers of a latency profile
TRAINING_S = {"resps": 25.0, "resps-text": 25.0, "resps-maxent": 25.0, "planner": 40.0, "marginal": 40.0}
DECISION_S = {"size": 0.0011, "depth": 0.00025}  # of LTD's policies in training
DECISIONS = {"size": 100_000, "depth": 1_000_000}  # of each training in `experiment=ltd_paper`
TRAININGS = {"size": (1, 0), "depth": (0, 1), "independent": (1, 1), "both": (2, 2)}  # of size and of depth
FEATURES_S, STEP_S = 0.6, {"causal_lm": 2.8, "lora": 1.5}  # of an answer; optimiser steps of 2,048 tokens
PLAIN_S, POOL_S, MANY_S, SMALL_LM_S = 1.9, 1.5, 4.0, 3.0  # a timed answer: no drafter, a pool, 32 drafters, small LMs
CYCLES = 44  # of a timed answer
CYCLE_S, NODE_S, LEVEL_S, CHILD_S = 0.0175, 0.0012, 0.0008, 0.00009  # of a cycle, a node, a level, its top_k
SMALLEST_TREES = {"resps": (32, 4, 8), "ltd": (21, 3, 10)}  # of the papers' grids: about the best static ones
POLICY_TREE, LONG_TREE = (64, 6, 12), (241, 9, 10)  # mean tree of a policy; if accept length is its reward
TURNS = {"mt_bench": 2.0, "spec_bench": 1.17}  # of a question, where there are several
REQUESTS = {"domains": 24, "scaling": 8, "papers": 114}  # that suites time; of papers: two of each of MMLU's tasks


def minutes_of(steps: Sequence[Step]) -> dict[str, int]:
    """Minutes of each step; traces, profiles and answers of a folder count in the first step that needs them."""
    shared: set[tuple[str, str]] = set()
    seconds = {step.name: sum(_seconds(command, step.folder, shared) for command in step.commands) for step in steps}
    return {name: math.ceil(value / 60) for name, value in seconds.items()}


def _seconds(command: str, folder: str, shared: set[tuple[str, str]]) -> float:
    _, name, *words = shlex.split(command)
    keys = dict(word.split("=", 1) for word in words)
    if name == "prepare-data":
        answers = sum(int(keys[f"data.num_{split}"]) for split in ("train", "val", "test"))
        return COMMAND_S + answers * (ANSWER_S + FEATURES_S) * _is_first(shared, folder, keys["name"])
    if name == "train-drafter":
        count = len(_entries(keys["domain"]))
        return COMMAND_S * (1 + count / 4) + count * int(keys["trainer.max_steps"]) * STEP_S[keys["drafter"]]
    if name == "train-policy":
        trained = _policy_seconds(keys, folder, shared) if "experiment" in keys else _router_seconds(keys)
        return COMMAND_S + trained
    return COMMAND_S + (_timed_seconds(keys, folder) if "suite.methods" in keys else _replay_seconds(keys))


def _router_seconds(keys: Mapping[str, str]) -> float:
    """Prompts that are read; those of the test in three more wordings."""
    prompts = sum(count * int(keys[f"router.num_{split}"]) for split, count in (("train", 1), ("val", 1), ("test", 4)))
    return len(POOL_DOMAINS) * prompts * READ_S


def _policy_seconds(keys: Mapping[str, str], folder: str, shared: set[tuple[str, str]]) -> float:
    """Traces and the profile, if no command before has made them; trainings; live decoding."""
    paper = keys["experiment"].removesuffix("_paper")
    policy, trained = keys.get("policy", paper), 1 + len(_entries(keys.get("seeds", "")))
    seconds = REPLAYS_S
    if _is_first(shared, folder, keys.get("traces.name", "traces")):
        answers = int(keys.get("traces.num_train", 80)) + int(keys["traces.num_test"])
        seconds += answers * (ANSWER_S + POSITIONS * POSITION_S[paper])
    if "latency" not in keys and _is_first(shared, folder, "profile"):
        seconds += PROFILED * _tree_seconds(POLICY_TREE)
    if policy == "ltd":
        counts = zip(DECISIONS, TRAININGS[keys.get("policy.decides", "both")], strict=True)
        training = sum(
            count * int(keys.get(f"policy.{name}_decisions", DECISIONS[name])) * DECISION_S[name]
            for name, count in counts
        )
    else:
        training = TRAINING_S[policy]
    default = tuple(int(keys[f"runtime.{name}"]) for name in ("num_tokens", "depth", "top_k"))
    answer = PLAIN_S + sum(map(_tree_seconds, (default, SMALLEST_TREES[paper], *[POLICY_TREE] * trained)))
    return seconds + trained * training + int(keys["live.num_prompts"]) * answer


def _timed_seconds(keys: Mapping[str, str], folder: str) -> float:
    """Requests that all methods answer in turn."""
    names, requests = _entries(keys["suite.methods"]), float(REQUESTS[keys["suite"]])
    if "suite.benchmarks" in keys:
        requests = int(keys["limit"]) * sum(TURNS.get(name, 1.0) for name in _entries(keys["suite.benchmarks"]))
    small = "-causal_lm" in keys.get("pool.drafters", "")
    each = PLAIN_S + READ_S * (1 + len(names)) + MANY_S * len(_entries(keys.get("suite.pool_sizes", "")))
    for name in names:
        tree = _tree_of(name.partition("/")[2], folder)
        each += _tree_seconds(tree) if tree else SMALL_LM_S if small else POOL_S
    return requests * each * int(keys.get("suite.max_new_tokens", 128)) / 128


def _replay_seconds(keys: Mapping[str, str]) -> float:
    """Answers that are recorded, and selectors replayed on them: over the pool, and over 4 parts of every size."""
    drafters = len(_entries(keys.get("pool.drafters", ""))) or len(POOL_DOMAINS) + 3
    selectors, answers = len(_entries(keys["suite.selectors"])), float(keys["suite.num_prompts"])
    answers *= sum(TURNS.get(name, 1.0) for name in _entries(keys.get("suite.benchmarks", "all")))
    return answers * (ANSWER_S + drafters * DRAFTS_S + selectors * (1 + 4 * drafters / 2) * PLAY_S)


def _tree_of(schedule: str, paper: str) -> tuple[int, int, int] | None:
    """The tree that a method's cycles have, about; None: a small one of a pool or a drafter."""
    if not schedule or schedule == "TREE":
        return SMALLEST_TREES[paper] if schedule else None
    return parse_tree(schedule) or (LONG_TREE if schedule.endswith("-length") else POLICY_TREE)


def _tree_seconds(tree: tuple[int, ...]) -> float:
    """A timed answer with a tree in every cycle."""
    nodes, depth, top_k = tree
    return CYCLES * (CYCLE_S + NODE_S * nodes + depth * (LEVEL_S + CHILD_S * top_k))


def _entries(text: str) -> list[str]:
    """The entries of a list such as `[a,b]`; of any other text, itself."""
    return [entry for entry in text.strip("[]").split(",") if entry]


def _is_first(shared: set[tuple[str, str]], folder: str, name: str) -> bool:
    """Whether no command before has made this in the folder."""
    is_first = (folder, name) not in shared
    shared.add((folder, name))
    return is_first
