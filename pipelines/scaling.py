"""The suite `scaling`: the same requests with other temperatures, batches, contexts and pools, against the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.progress import say
from drafterforge.data.chat import Message, prompt_ids
from drafterforge.evaluation.ledger import Entry
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.shelf import Shelf
from drafterforge.pipelines.contenders import Contenders
from drafterforge.pipelines.suites import answered, test_prompts
from drafterforge.pipelines.timing import POOL_SIZE, timed

TEMPERATURE, BATCH_SIZE, CONTEXT = "temperature", "batch size", "context length"
MOST_TURNS = 64  # put before a request to make it long
FIGURES = ("speedup", "mat", "tokens_per_s")


def scaled(
    cfg: EvaluateConfig,
    contenders: Contenders,
    requests: Sequence[Request],
    places: Sequence[int],
    shelf: Shelf,
) -> tuple[list[Entry], list[Request]]:
    """What was measured along every axis, and the requests with those that were made for it behind them."""
    own = [name for name in cfg.suite.methods if not name.startswith("hf_")]  # others' noise and batches are not ours
    methods = contenders.build(own)
    every, found = list(requests), []

    def measure(axis: str, at: float, methods: Sequence[Any], places: Sequence[int], **more: Any) -> None:
        found.extend(timed(cfg, methods, every, places, shelf, axis=axis, at=at, **more))

    for temperature in cfg.suite.temperatures:
        measure(TEMPERATURE, temperature, methods, places, temperature=temperature)
    for size in cfg.suite.batch_sizes:
        enough = [*places, *(place for place in range(len(requests)) if place not in places)]
        count = max(size, len(places) // size * size)
        if count > len(requests):
            say(f"left out a batch of {size}: the suite has {len(requests)} requests; type suite.num_prompts={size}")
            continue
        for method in methods:
            for engine in (method.engine, *method.experts.values()):
                engine.max_batch = max(engine.max_batch, size)
        measure(BATCH_SIZE, size, methods, enough[:count], batch_size=size)
    for length in cfg.suite.context_lengths:
        longer = lengthened(cfg, contenders, [requests[place] for place in places], length, shelf)
        every += longer
        if longer:
            measure(CONTEXT, length, methods, range(len(every) - len(longer), len(every)))
    for size in cfg.suite.pool_sizes:
        if size <= len(contenders.pool.names):
            measure(POOL_SIZE, size, contenders.of_size(size).build(["default"]), places)
    return found, every


def lengthened(
    cfg: EvaluateConfig, contenders: Contenders, requests: Sequence[Request], length: int, shelf: Shelf
) -> list[Request]:
    """The requests behind other held-out prompts and the target's answers, as many as fit into `length` tokens."""
    target = contenders.target
    room = target.max_positions - cfg.suite.max_new_tokens
    if length > room:
        say(f"left out a context of {length} tokens: this target reads {room} before an answer of this length")
        return []
    drawn = [prompt for found in test_prompts(cfg, MOST_TURNS, cfg.seed + 2).values() for prompt in found[:MOST_TURNS]][
        :MOST_TURNS
    ]
    asked = [Request(prompt_ids(target.tokenizer, prompt.messages), prompt.domain) for prompt in drawn]
    replies = answered(cfg, target, asked, "answering what stands before", shelf, "before")
    turns = []
    for prompt, reply in zip(drawn, replies, strict=True):
        turns.append([*prompt.messages, {"role": "assistant", "content": reply.text}])
    found = []
    for request in requests:
        tokens: list[int] = request.tokens
        kept: list[Message] = []
        for turn in turns:
            longer = prompt_ids(target.tokenizer, [*kept, *turn, *request.messages])
            if len(longer) <= length:
                tokens, kept = longer, [*kept, *turn]
        found.append(Request(tokens, request.domain, expert=request.expert))
    return found


def scaling_curves(
    rows: Sequence[Mapping[str, Any]], replayed: Mapping[str, list[dict[str, Any]]]
) -> dict[str, list[dict[str, Any]]]:
    """What the report draws: figures of every method along every axis, behind those that were replayed."""
    found = {axis: list(points) for axis, points in replayed.items()}
    for row in rows:
        if row.get("axis") and not str(row["method"]).startswith("autoregressive"):
            point = {"method": row["method"], "at": row["at"]} | {key: row[key] for key in FIGURES}
            found.setdefault(row["axis"], []).append(point)
    return found
