"""What each suite of `eval` asks: held-out prompts by domain, streams of them, rephrased ones, benchmarks' turns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.config.progress import bar, say
from drafterforge.data.chat import prompt_ids
from drafterforge.data.prompts import Prompt, interleave, load_prompts
from drafterforge.data.questions import Question, load_questions, turn_messages
from drafterforge.evaluation.requests import Request
from drafterforge.evaluation.shelf import Shelf
from drafterforge.prompts.rephrase import kinds, rephrased
from drafterforge.runtime.batch import Generation
from drafterforge.runtime.engine import Engine
from drafterforge.targets.load import Target

STREAMS = ("mixed", "ood")  # suites whose requests come in a drawn order, the domains mixed
CHUNKS = 4  # batches that are answered before they are put on the shelf


def requests_of(cfg: EvaluateConfig, target: Target, shelf: Shelf) -> list[Request]:
    """The suite's requests."""
    if cfg.suite.name in STREAMS:
        return stream(cfg, target, shelf, cfg.suite.num_prompts, cfg.seed)
    if cfg.suite.name == "papers":
        return turns(cfg, target, shelf)
    return by_domain(cfg, target)


def tuning_requests(cfg: EvaluateConfig, target: Target, shelf: Shelf, requests: Sequence[Request]) -> list[Request]:
    """Others of the same kind, on which constants are tuned."""
    reported = [request.tokens for request in requests]
    drawn = stream(cfg, target, shelf, cfg.suite.tuning_prompts, cfg.seed + 1)
    return [request for request in drawn if request.tokens not in reported]


def test_prompts(cfg: EvaluateConfig, each: int, seed: int) -> dict[str, list[Prompt]]:
    """Held-out prompts of every domain of the suite."""
    data = DataConfig(num_train=1, num_val=1, num_test=each)
    return {name: load_prompts(data, DomainConfig(name=name), seed)["test"] for name in cfg.suite.domains}


def by_domain(cfg: EvaluateConfig, target: Target) -> list[Request]:
    """As many prompts of each domain, the domains taking turns."""
    each = -(-cfg.suite.num_prompts // len(cfg.suite.domains))
    mixed = interleave(list(test_prompts(cfg, each, cfg.seed).values()))[: cfg.suite.num_prompts]
    return [
        Request(prompt_ids(target.tokenizer, prompt.messages), prompt.domain, messages=list(prompt.messages))
        for prompt in mixed
    ]


def turns(cfg: EvaluateConfig, target: Target, shelf: Shelf) -> list[Request]:
    """Every turn of the questions, behind the target's own answers to the turns before it."""
    suite = cfg.suite
    questions = load_questions(suite.questions, suite.benchmarks, suite.num_prompts, cfg.seed)
    said: dict[str, list[str]] = {question.id: [] for question in questions}
    found: dict[tuple[str, int], Request] = {}
    for turn in range(max(len(question.turns) for question in questions)):
        asked = [question for question in questions if len(question.turns) > turn]
        requests = [one for one in (request_of(target, question, said[question.id]) for question in asked) if one]
        found |= {(request.question, turn): request for request in requests}
        going_on = [one for one in requests if len(next(q for q in asked if q.id == one.question).turns) > turn + 1]
        replies = answered(cfg, target, going_on, f"answering turn {turn + 1}", shelf, f"turn-{turn}")
        for request, reply in zip(going_on, replies, strict=True):
            said[request.question].append(reply.text)
        fitting = {request.question for request in going_on}
        questions = [question for question in questions if question.id in fitting]
    order = {question: place for place, question in enumerate(said)}
    return [found[key] for key in sorted(found, key=lambda key: (order[key[0]], key[1]))]


def request_of(target: Target, question: Question, said: Sequence[str]) -> Request | None:
    """The question's next turn; None, and a line, if the target cannot read it."""
    tokens = prompt_ids(target.tokenizer, turn_messages(question, said))
    if len(tokens) >= target.max_positions:
        say(
            f"left out turn {len(said) + 1} of {question.id}: its prompt has {len(tokens)} tokens, this target reads "
            f"1 to {target.max_positions - 1}"
        )
        return None
    return Request(tokens, question.column, question=question.id, turn=len(said), expert=question.domain)


def stream(cfg: EvaluateConfig, target: Target, shelf: Shelf, count: int, seed: int) -> list[Request]:
    """Held-out prompts of all domains in a seeded order; some go on from an answer of another domain."""
    drawn = test_prompts(cfg, -(-2 * count // len(cfg.suite.domains)), seed)
    draw = random.Random(seed)
    prompts = [(name, prompt) for name, found in drawn.items() for prompt in reworded(cfg, found, seed)]
    draw.shuffle(prompts)
    going_on = round(cfg.suite.conversations * count) if len(drawn) > 1 else 0
    first = [(name, list(prompt.messages)) for name, prompt in prompts]
    openings = first[count : count + going_on]
    asked = [Request(prompt_ids(target.tokenizer, m), name) for name, m in openings]
    replies = answered(cfg, target, asked, "answering what is gone on from", shelf, f"openings-{seed}")
    requests = [Request(prompt_ids(target.tokenizer, messages), name) for name, messages in first[going_on:count]]
    for (before, messages), reply in zip(openings, replies, strict=True):
        name, following = next((n, m) for n, m in first[count + going_on :] + first if n != before)
        first.remove((name, following))
        turns = [*messages, {"role": "assistant", "content": reply.text}, *following]
        requests.append(Request(prompt_ids(target.tokenizer, turns), name, before))
    draw.shuffle(requests)
    return requests


def reworded(cfg: EvaluateConfig, prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Prompts as they are; for suite=ood in other words, kinds in turn."""
    if cfg.suite.name != "ood":
        return list(prompts)
    each = [rephrased(prompts, kind, "test", seed) for kind in kinds()]
    return [each[place % len(each)][place] for place in range(len(prompts))]


def answered(
    cfg: EvaluateConfig, target: Target, requests: Sequence[Request], title: str, shelf: Shelf, name: str
) -> list[Generation]:
    """The target's own answers, kept under `name` as they come."""
    engine, found = Engine(target, max_batch=cfg.suite.batch_size), []
    size = CHUNKS * cfg.suite.batch_size
    with bar(title, len(requests)) as progress:
        for start in range(0, len(requests), size):
            part = [request.tokens for request in requests[start : start + size]]
            found += shelf.answers(
                f"{name}-{start:05d}", lambda part=part: engine.generate(part, cfg.suite.max_new_tokens)
            )
            progress.advance(len(part))
    return found


def limited(cfg: EvaluateConfig) -> EvaluateConfig:
    """With at most `limit` prompts of each domain or benchmark."""
    if not cfg.limit:
        return cfg
    if cfg.suite.name == "papers":
        return replace(cfg, suite=replace(cfg.suite, num_prompts=min(cfg.suite.num_prompts, cfg.limit)))
    most = cfg.limit * len(cfg.suite.domains)
    suite, least = cfg.suite, lambda count: min(count, most)
    shorter = replace(
        suite,
        num_prompts=least(suite.num_prompts),
        timed_prompts=least(suite.timed_prompts),
        tuning_prompts=least(suite.tuning_prompts),
    )
    return replace(cfg, suite=shorter)
