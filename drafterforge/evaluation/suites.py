"""Requests of each suite: held-out prompts by domain, mixed streams, rephrased prompts, turns of benchmarks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.config.evaluation import VLLM
from drafterforge.config.progress import bar, say
from drafterforge.data.answering import DATE
from drafterforge.data.chat import Message, prompt_ids
from drafterforge.data.prompts import Prompt, interleave, load_prompts
from drafterforge.data.questions import Question, load_questions, questions_digest, turn_messages
from drafterforge.evaluation.requests import Request, spread_over_domains
from drafterforge.evaluation.resume_cache import ResumeCache
from drafterforge.evaluation.timing import samplings
from drafterforge.prompts.rephrase import kinds, rephrase_prompts
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.rows import Generation
from drafterforge.runtime.sampling import Sampling
from drafterforge.targets.load import Target

STREAMS = ("mixed", "ood")  # suites whose requests mix domains in random order
CACHED_BATCHES = 4  # batches answered before they are saved


@dataclass(frozen=True)
class Suite:
    """A suite's prompts for a target; answers are cached, so that an interrupted run resumes."""

    cfg: EvaluateConfig
    target: Target | Any  # of a target that an engine decodes elsewhere: its tokenizer and its longest sequence
    cache: ResumeCache
    questions: Sequence[Question] = ()  # of the question files; empty: the prompts come from the grammars
    engine: Any = None  # answers earlier turns; None: ours

    def requests(self) -> list[Request]:
        suite = self.cfg.suite
        if suite.name == "auto":
            return self._alternating()
        if suite.name in STREAMS:
            return self._stream(suite.num_prompts, self.cfg.seed)
        return self._turns() if self.questions else self._by_domain()

    def tuning_requests(self, requests: Sequence[Request]) -> list[Request]:
        """Other requests of the same kind, for tuning the selectors' constants."""
        reported = [request.tokens for request in requests]
        drawn = self._stream(self.cfg.suite.tuning_prompts, self.cfg.seed + 1)
        return [request for request in drawn if request.tokens not in reported]

    def timed_indices(self, requests: Sequence[Request]) -> list[int]:
        """Indices of the timed requests: the first of a stream, else as many of each domain."""
        count = self.cfg.suite.timed_prompts
        if self.cfg.suite.name in STREAMS:
            return list(range(min(count, len(requests))))
        return spread_over_domains(list(requests), count)

    def prompts(self, num_each: int, seed: int) -> dict[str, list[Prompt]]:
        """Held-out prompts of every domain of the suite."""
        data = DataConfig(num_train=1, num_val=1, num_test=num_each)
        return {name: load_prompts(data, DomainConfig(name=name), seed)["test"] for name in self.cfg.suite.domains}

    def answers(self, requests: Sequence[Request], title: str, part: str) -> list[Generation]:
        """The target's answers.  title: of the progress bar.  part: name in the resume cache."""
        suite, answers = self.cfg.suite, []
        numerics = self.cfg.runtime.numerics
        engine = self.engine or Engine(self.target, max_batch=suite.batch_size, numerics=numerics)
        size = CACHED_BATCHES * suite.batch_size
        with bar(title, len(requests)) as progress:
            for start in range(0, len(requests), size):
                prompts = [request.tokens for request in requests[start : start + size]]
                draws = self.samplings(start, len(prompts))

                def answer(prompts: list[list[int]] = prompts, draws: list[Sampling] = draws) -> list[Generation]:
                    return engine.generate(prompts, suite.max_new_tokens, *([draws] if suite.temperature else []))

                answers += self.cache.answers(f"{part}-{start:05d}", answer)
                progress.advance(len(prompts))
        return answers

    def samplings(self, start: int, count: int) -> list[Sampling]:
        """Sampling of requests `start`, `start` + 1 .. as in timed decoding."""
        return samplings(self.cfg.suite.temperature, self.cfg.seed + start, count)

    def _alternating(self) -> list[Request]:
        """The questions, or rephrased held-out prompts if there are none, with domains in random order."""
        suite = self.cfg.suite
        requests = self._turns() if self.questions else self._stream(suite.num_prompts, self.cfg.seed)
        random.Random(self.cfg.seed).shuffle(requests)
        return requests

    def _by_domain(self) -> list[Request]:
        """As many prompts of each domain, interleaved."""
        count = self.cfg.suite.num_prompts
        num_each = -(-count // len(self.cfg.suite.domains))
        mixed = interleave(list(self.prompts(num_each, self.cfg.seed).values()))[:count]
        return [
            Request(self._encode(prompt.messages), prompt.domain, messages=list(prompt.messages)) for prompt in mixed
        ]

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        return prompt_ids(self.target.tokenizer, messages, date=DATE)

    def _turns(self) -> list[Request]:
        """Every turn of the questions, after the target's answers to earlier turns."""
        questions = self.questions
        order = {question.id: number for number, question in enumerate(questions)}
        replies: dict[str, list[str]] = {question.id: [] for question in questions}
        requests: dict[tuple[int, int], Request] = {}  # by question and turn
        for turn in range(max(len(question.turns) for question in questions)):
            unfinished = []  # questions with a further turn
            for question in (question for question in questions if len(question.turns) > turn):
                if request := self._turn(question, replies[question.id]):
                    requests[order[question.id], turn] = request
                    unfinished += [question] if len(question.turns) > turn + 1 else []
            continued = [requests[order[question.id], turn] for question in unfinished]
            for question, answer in zip(
                unfinished, self.answers(continued, f"answering turn {turn + 1}", f"turn-{turn}"), strict=True
            ):
                replies[question.id].append(answer.text)
            questions = unfinished
        return [requests[key] for key in sorted(requests)]

    def _turn(self, question: Question, replies: Sequence[str]) -> Request | None:
        """The question's next turn; None, with a printed line, if it exceeds the target's context."""
        messages = turn_messages(question, replies)
        tokens = self._encode(messages)
        if len(tokens) >= self.target.max_positions:
            say(
                f"turn {len(replies) + 1} of {question.id} skipped: its prompt has {len(tokens)} tokens, this target "
                f"reads at most {self.target.max_positions - 1}"
            )
            return None
        source = {"question": question.id, "turn": len(replies), "expert": question.domain}
        return Request(tokens, question.column, **source, messages=messages)

    def _stream(self, count: int, seed: int) -> list[Request]:
        """Held-out prompts of all domains in seeded random order; some continue a conversation of another domain."""
        by_domain = self.prompts(-(-2 * count // len(self.cfg.suite.domains)), seed)
        rng = random.Random(seed)
        prompts = [(name, prompt) for name, drawn in by_domain.items() for prompt in self._rephrased(drawn, seed)]
        rng.shuffle(prompts)
        num_conversations = round(self.cfg.suite.conversations * count) if len(by_domain) > 1 else 0
        conversations = [(name, list(prompt.messages)) for name, prompt in prompts]
        openings = conversations[count : count + num_conversations]
        opening_requests = [Request(self._encode(messages), name) for name, messages in openings]
        replies = self.answers(opening_requests, "answering the openings of conversations", f"openings-{seed}")
        single = conversations[num_conversations:count]
        requests = [Request(self._encode(messages), name, messages=messages) for name, messages in single]
        for (before, messages), reply in zip(openings, replies, strict=True):
            candidates = conversations[count + num_conversations :] + conversations
            name, following = next((n, m) for n, m in candidates if n != before)
            conversations.remove((name, following))
            turns = [*messages, {"role": "assistant", "content": reply.text}, *following]
            requests.append(Request(self._encode(turns), name, before, messages=turns))
        rng.shuffle(requests)
        return requests

    def _rephrased(self, prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
        """The prompts; for suite=ood and suite=auto rephrased, each in the next kind of rephrasing."""
        if self.cfg.suite.name not in ("ood", "auto"):
            return list(prompts)
        by_kind = [rephrase_prompts(prompts, kind, "test", seed) for kind in kinds()]
        return [by_kind[index % len(by_kind)][index] for index in range(len(prompts))]


def suite_questions(cfg: EvaluateConfig) -> list[Question]:
    """The questions of `suite.questions`; empty if the suite draws its prompts from the grammars."""
    suite = cfg.suite
    return load_questions(suite.questions, suite.benchmarks, suite.num_prompts, cfg.seed) if suite.questions else []


def prompts_identity(cfg: EvaluateConfig, questions: Sequence[Question]) -> dict[str, Any]:
    """The curve `prompts` of a report: reports of the same suite that differ in it measured other prompts."""
    keys = "domains num_prompts conversations timed_prompts warm_up_prompts cell_prompts max_new_tokens"
    return {"questions": questions_digest(questions)} | {key: getattr(cfg.suite, key) for key in keys.split()}


def with_limit(cfg: EvaluateConfig) -> EvaluateConfig:
    """The configuration with at most `limit` prompts of each domain or benchmark, and as many to warm up a cell."""
    if not cfg.limit:
        return cfg
    cfg = replace(cfg, suite=replace(cfg.suite, warm_up_prompts=min(cfg.suite.warm_up_prompts, cfg.limit)))
    if cfg.suite.name == "papers" or (cfg.suite.name in ("auto", VLLM) and cfg.suite.questions):
        return replace(cfg, suite=replace(cfg.suite, num_prompts=min(cfg.suite.num_prompts, cfg.limit)))
    suite, maximum = cfg.suite, cfg.limit * len(cfg.suite.domains)
    counts = {name: min(getattr(suite, name), maximum) for name in ("num_prompts", "timed_prompts", "tuning_prompts")}
    return replace(cfg, suite=replace(suite, **counts))
