"""Loads benchmark questions from JSONL files (EAGLE's and Spec-Bench's `question.jsonl`, or ours) and data sets.

A line is {question_id, category, turns, reference}, as in those repositories, or {id, domain, messages, turns,
category}.  The file name gives the benchmark: NAME.jsonl or NAME/question.jsonl.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Any

from drafterforge.artifacts.manifest import canonical_json
from drafterforge.data.chat import Message
from drafterforge.data.sources import dataset_errors, json_lines, parse_messages
from drafterforge.errors import ArtifactError, ConfigError, quote, shorten

BENCHMARKS = {  # benchmark -> our domain
    "mt_bench": "chat",
    "humaneval": "python",
    "gsm8k": "math",
    "alpaca": "chat",
    "cnn_dm": "summarization",
    "qa": "science",
    "spec_bench": "",
}
SPEC_BENCH = {  # its six groups -> our domain
    "mt_bench": "chat",
    "translation": "translation",
    "summarization": "summarization",
    "qa": "science",
    "math_reasoning": "math",
    "rag": "science",
}
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
SPELLINGS = {  # other spellings of benchmarks and domains, in file names and data sets
    "sum": "cnn_dm",
    "cnndm": "cnn_dm",
    "cnn_dailymail": "cnn_dm",
    "human_eval": "humaneval",
    "openai_humaneval": "humaneval",
    "mtbench": "mt_bench",
    "mt_bench_prompts": "mt_bench",
    "nq": "qa",
    "natural_questions": "qa",
    "specbench": "spec_bench",
    "code": "python",
}
FILE = "question.jsonl"
DATASET_FILES = ("state.json", "dataset_dict.json")  # either marks a folder written by `save_to_disk`
EXAMPLE = '{"question_id": 1, "category": "...", "turns": ["..."]}'
HINT = "give a file, a folder of NAME.jsonl or NAME/question.jsonl, or a data set's hub id"
IDS = ("question_id", "id", "prompt_id", "task_id")
TURNS = ("turns", "prompt", "question")


@dataclass(frozen=True)
class Question:
    """A benchmark question of one or more turns; the target's own answers stand between them."""

    id: str  # unique among the questions loaded together
    suite: str  # the benchmark, or the name of the file
    category: str
    domain: str  # our domain, whose expert drafts
    turns: tuple[str, ...]
    system: str = ""  # system prompt
    reference: tuple[str, ...] = ()  # answers of the source; not used in any measurement

    @property
    def group(self) -> str:
        """The category; for Spec-Bench its group: MT-bench's eight categories form one group there."""
        return "mt_bench" if self.suite == "spec_bench" and self.category in MT_BENCH else self.category

    @property
    def column(self) -> str:
        """Column of tables and domain of report rows that count this question: `gsm8k`, `spec_bench/rag`."""
        return f"{self.suite}/{self.group}" if self.suite == "spec_bench" else self.suite


def turn_messages(question: Question, answers: Sequence[str] = ()) -> list[Message]:
    """The chat messages up to the next turn.  answers: the target's, to all earlier turns."""
    turn_index = len(answers)
    if turn_index >= len(question.turns):
        raise ValueError(f"question {question.id} has {len(question.turns)} turns, and {turn_index} answers are given")
    messages = [{"role": "system", "content": question.system}] if question.system else []
    for turn, answer in zip(question.turns, answers, strict=False):
        messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
    return [*messages, {"role": "user", "content": question.turns[turn_index]}]


def load_questions(
    path: str | Path, names: Sequence[str] = (), limit: int = 0, seed: int = 0, system: str = ""
) -> list[Question]:
    """Questions of a file, a folder of files, or a data set of the Hugging Face hub or on disk.

    names: benchmarks or file names to read; empty: all.  limit: questions of each file, balanced over its categories;
    0: all.  seed: of that choice.  system: default system prompt.
    """
    if limit < 0:
        raise ConfigError(f"limit must be 0 (all questions) or more, got {limit}")
    questions: list[Question] = []
    origins: dict[str, str] = {}
    for suite, where, read in _select(_sources(path), names, path):
        loaded = list(read(_parser(suite, system)))
        if not loaded:
            raise ArtifactError(f"{where} holds no questions; {HINT}")
        for question in loaded:
            if question.id in origins:
                raise ArtifactError(f"{where} and {origins[question.id]} both have the id {quote(question.id)}")
        origins |= {question.id: where for question in loaded}
        questions += sample_evenly(loaded, limit, seed) if limit else loaded
    return questions


def questions_digest(questions: Sequence[Question]) -> str:
    """The hash of what answers and their reports depend on: ids, system prompts, turns and domains, in order."""
    entries = [
        (question.id, question.column, question.domain, question.system, question.turns) for question in questions
    ]
    return sha256(canonical_json(entries)).hexdigest()


def sample_evenly(questions: Sequence[Question], limit: int, seed: int = 0) -> list[Question]:
    """Samples `limit` questions evenly over groups and categories; they stay in order.

    The sample of a larger limit contains that of a smaller one.
    """
    shuffled = sorted(questions, key=lambda q: sha256(f"{seed}/{q.id}".encode("utf-8", "surrogatepass")).digest())
    selected = {question.id for question in _round_robin(shuffled, ("group", "category"))[:limit]}
    return [question for question in questions if question.id in selected]


def _round_robin(questions: Sequence[Question], keys: tuple[str, ...]) -> list[Question]:
    """All questions in round-robin order over the values of the first key, and so on within each value."""
    if not keys:
        return list(questions)
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(getattr(question, keys[0]), []).append(question)
    ordered = [_round_robin(group, keys[1:]) for _, group in sorted(groups.items())]
    return [question for turn in zip_longest(*ordered) for question in turn if question is not None]


# --- sources -------------------------------------------------------------------------------------

Parse = Callable[[dict[str, Any], int], Question]
Source = tuple[str, str, Callable[[Parse], Iterable[Question]]]  # benchmark, path or hub id, reader


def _sources(path: str | Path) -> list[Source]:
    source = Path(path).expanduser()
    if source.is_file():
        return [_file(source)]
    if any((source / name).is_file() for name in DATASET_FILES):
        return [_data_set(str(source))]
    if source.is_dir():
        files = sorted([*source.glob("*.jsonl"), *source.glob(f"*/{FILE}")])
        if not files:
            raise ArtifactError(f"{source} holds no question files; {HINT}")
        return [_file(file) for file in files]
    if re.fullmatch(r"[\w-]+/[\w.-]+", str(path)) and not str(path).endswith((".json", ".jsonl")):
        return [_data_set(str(path))]
    raise ArtifactError(f"no question files at {path}; {HINT}")


def _select(sources: list[Source], names: Sequence[str], path: str | Path) -> list[Source]:
    by_suite: dict[str, Source] = {}
    for source in sources:
        if source[0] in by_suite:
            raise ArtifactError(f"{by_suite[source[0]][1]} and {source[1]} are both {source[0]}; keep one of them")
        by_suite[source[0]] = source
    for name in names:
        if _canonical(name) not in by_suite:
            raise ConfigError(f"{path} has no questions called {name!r}; it has {', '.join(by_suite)}")
    suites = [_canonical(name) for name in names] or list(by_suite)
    return [by_suite[suite] for suite in dict.fromkeys(suites)]


def _file(path: Path) -> Source:
    name = path.resolve().parent.name if path.name == FILE else path.stem
    return _canonical(name), str(path), lambda parse: json_lines(path, parse, EXAMPLE, HINT)


def _data_set(name: str) -> Source:
    return _canonical(Path(name).name), name, lambda parse: _rows(name, parse)


def _rows(name: str, parse: Parse) -> Iterable[Question]:
    with dataset_errors(name, HINT):
        import datasets  # heavy, and needed for data sets alone

        rows = datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name)
        if isinstance(rows, dict):  # by split
            rows = rows.get("test") or next(iter(rows.values()))
        for number, record in enumerate(rows):
            try:
                yield parse(record, number)
            except ValueError as error:
                raise ArtifactError(f"{name}, row {number}: found {error}") from error


def _canonical(name: str) -> str:
    plain = name.lower().replace("-", "_")
    return SPELLINGS.get(plain, plain)


# --- a line --------------------------------------------------------------------------------------


def _parser(suite: str, system: str) -> Parse:
    """A parser for the lines of one file; it refuses repeated ids."""
    seen: dict[str, int] = {}

    def parse(record: dict[str, Any], number: int) -> Question:
        question = _question(record, number, suite, system)
        first = seen.setdefault(question.id, number)
        if first != number:
            raise ValueError(f"the id {quote(question.id)} a second time (first in {first})")
        return question

    return parse


def _question(record: dict[str, Any], number: int, suite: str, system: str) -> Question:
    system_prompt, turns = _turns(record)
    category = record.get("category") or suite
    if not isinstance(category, str):
        raise ValueError(f"category={category!r:.60}, wanted text")
    question = Question(_id(record, number, suite), suite, category, "", turns, system_prompt or system, _texts(record))
    domain = record.get("domain") or BENCHMARKS.get(suite) or SPEC_BENCH.get(question.group) or suite
    if not isinstance(domain, str):
        raise ValueError(f"domain={domain!r:.60}, wanted text")
    return replace(question, domain=_canonical(domain))


def _id(record: dict[str, Any], number: int, suite: str) -> str:
    value = next((record[key] for key in IDS if record.get(key) not in (None, "")), number)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"the id {value!r:.60}, wanted text or a whole number")
    return value if isinstance(value, str) else f"{suite}-{value}"


def _turns(record: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """System prompt and user turns."""
    messages = parse_messages(record["messages"]) if record.get("messages") else ()
    if any(message["role"] == "assistant" for message in messages):
        raise ValueError("an assistant message, wanted user turns only: the target writes the answers")
    turns = next((record[key] for key in TURNS if record.get(key) is not None), None)
    if turns is None:
        turns = [message["content"] for message in messages if message["role"] == "user"]
    if isinstance(turns, str):
        turns = [turns]
    if not isinstance(turns, list | tuple) or not turns:
        keys = shorten(", ".join(sorted(record))) or "none"
        raise ValueError(f"no turns (keys: {keys}), wanted {EXAMPLE}")
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, str) or not turn.strip():
            raise ValueError(f"{turn!r:.60} as turn {number}, wanted text")
    return "\n".join(message["content"] for message in messages if message["role"] == "system"), tuple(turns)


def _texts(record: dict[str, Any]) -> tuple[str, ...]:
    """Reference answers that are texts."""
    references = record.get("reference")
    references = [references] if isinstance(references, str) else references
    return tuple(text for text in references if isinstance(text, str)) if isinstance(references, list | tuple) else ()
