"""Questions of benchmarks: files in the form of EAGLE's and Spec-Bench's `question.jsonl`, files of our own, data sets.

A line is {question_id, category, turns, reference}, as those repositories have it, or {id, domain, messages, turns,
category}.  The name of a file says which benchmark it is: NAME.jsonl or NAME/question.jsonl.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Any

from drafterforge.data.chat import Message
from drafterforge.data.sources import json_lines, one_line, parse_messages
from drafterforge.errors import ArtifactError, ConfigError

BENCHMARKS = {  # benchmark -> domain of ours
    "mt_bench": "chat",
    "humaneval": "python",
    "gsm8k": "math",
    "alpaca": "chat",
    "cnn_dm": "summarization",
    "qa": "science",
    "spec_bench": "",
}
SPEC_BENCH = {  # its six groups -> domain of ours
    "mt_bench": "chat",
    "translation": "translation",
    "summarization": "summarization",
    "qa": "science",
    "math_reasoning": "math",
    "rag": "science",
}
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
SPELLINGS = {  # of benchmarks and domains in file names and data sets
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
SAVED = ("state.json", "dataset_dict.json")  # of a folder that `save_to_disk` wrote
WANTED = '{"question_id": 1, "category": "...", "turns": ["..."]}'
HINT = "give a file, a folder of NAME.jsonl or NAME/question.jsonl, or a data set's hub id"
IDS = ("question_id", "id", "prompt_id", "task_id")
TURNS = ("turns", "prompt", "question")


@dataclass(frozen=True)
class Question:
    """What a benchmark asks, turn by turn; later turns are asked after the target's own answers to those before."""

    id: str  # no two of a load have the same
    suite: str  # the benchmark, or the name of the file
    category: str
    domain: str  # of ours, whose expert is asked
    turns: tuple[str, ...]
    system: str = ""  # prompt before the first turn
    reference: tuple[str, ...] = ()  # answers that the source gives; nothing is measured by them

    @property
    def group(self) -> str:
        """The category; of Spec-Bench one of its six groups, for which MT-bench's eight categories are one."""
        return "mt_bench" if self.suite == "spec_bench" and self.category in MT_BENCH else self.category

    @property
    def column(self) -> str:
        """Where tables count it, and what a row of a report has as its domain: `gsm8k`, `spec_bench/rag`."""
        return f"{self.suite}/{self.group}" if self.suite == "spec_bench" else self.suite


def turn_messages(question: Question, answers: Sequence[str] = ()) -> list[Message]:
    """The chat messages of the turn that follows these answers, which are the target's to all turns before it."""
    asked = len(answers)
    if asked >= len(question.turns):
        raise ValueError(f"question {question.id} has {len(question.turns)} turns, and {asked} answers are given")
    messages = [{"role": "system", "content": question.system}] if question.system else []
    for turn, answer in zip(question.turns, answers, strict=False):
        messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
    return [*messages, {"role": "user", "content": question.turns[asked]}]


def load_questions(
    path: str | Path, names: Sequence[str] = (), limit: int = 0, seed: int = 0, system: str = ""
) -> list[Question]:
    """Questions of a file, of every file of a folder, or of a data set of the Hugging Face hub or on disk.

    names: benchmarks, or names of files, to read; empty: all.  limit: questions of each file, categories alike; 0: all.
    seed: which ones.  system: prompt of questions that have none of their own.
    """
    if limit < 0:
        raise ConfigError(f"limit must be 0 (all questions) or more, got {limit}")
    found: list[Question] = []
    places: dict[str, str] = {}
    for suite, where, read in _chosen(_sources(path), names, path):
        asked = list(read(_parser(suite, system)))
        if not asked:
            raise ArtifactError(f"{where} holds no questions; {HINT}")
        for one in asked:
            if one.id in places:
                raise ArtifactError(f"{where} has the id {one.id!r}, and {places[one.id]} has it too")
        places |= {one.id: where for one in asked}
        found += spread(asked, limit, seed) if limit else asked
    return found


def spread(questions: Sequence[Question], limit: int, seed: int = 0) -> list[Question]:
    """At most `limit` questions in their order: as many of each group and category as can be, a seed's choice of each.

    A larger limit adds to what a smaller one chose.
    """
    drawn = sorted(questions, key=lambda one: sha256(f"{seed}/{one.id}".encode("utf-8", "surrogatepass")).digest())
    chosen = {one.id for one in _dealt(drawn, ("group", "category"))[:limit]}
    return [one for one in questions if one.id in chosen]


def _dealt(questions: Sequence[Question], keys: tuple[str, ...]) -> list[Question]:
    """All questions, one of each pile by turns; a pile is dealt by the further keys in the same way."""
    if not keys:
        return list(questions)
    piles: dict[str, list[Question]] = {}
    for one in questions:
        piles.setdefault(getattr(one, keys[0]), []).append(one)
    dealt = [_dealt(pile, keys[1:]) for _, pile in sorted(piles.items())]
    return [one for turn in zip_longest(*dealt) for one in turn if one is not None]


# --- where they are ------------------------------------------------------------------------------

Parse = Callable[[dict[str, Any], int], Question]
Source = tuple[str, str, Callable[[Parse], Iterable[Question]]]  # benchmark, where it is, what reads it


def _sources(path: str | Path) -> list[Source]:
    given = Path(path).expanduser()
    if given.is_file():
        return [_file(given)]
    if any((given / name).is_file() for name in SAVED):
        return [_data_set(str(given))]
    if given.is_dir():
        files = sorted([*given.glob("*.jsonl"), *given.glob(f"*/{FILE}")])
        if not files:
            raise ArtifactError(f"{given} holds no question files; {HINT}")
        return [_file(file) for file in files]
    if re.fullmatch(r"[\w-]+/[\w.-]+", str(path)) and not str(path).endswith((".json", ".jsonl")):
        return [_data_set(str(path))]
    raise ArtifactError(f"no question files at {path}; {HINT}")


def _chosen(sources: list[Source], names: Sequence[str], path: str | Path) -> list[Source]:
    by_suite: dict[str, Source] = {}
    for source in sources:
        if source[0] in by_suite:
            raise ArtifactError(f"{by_suite[source[0]][1]} and {source[1]} are both {source[0]}; keep one of them")
        by_suite[source[0]] = source
    for name in names:
        if _spelled(name) not in by_suite:
            raise ConfigError(f"{path} has no questions called {name!r}; it has {', '.join(by_suite)}")
    wanted = [_spelled(name) for name in names] or list(by_suite)
    return [by_suite[suite] for suite in dict.fromkeys(wanted)]


def _file(path: Path) -> Source:
    name = path.resolve().parent.name if path.name == FILE else path.stem
    return _spelled(name), str(path), lambda parse: json_lines(path, parse, WANTED, HINT)


def _data_set(name: str) -> Source:
    return _spelled(Path(name).name), name, lambda parse: _rows(name, parse)


def _rows(name: str, parse: Parse) -> Iterable[Question]:
    with one_line(name, HINT):
        import datasets  # heavy, and needed for data sets alone

        found = datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name)
        if isinstance(found, dict):  # by split
            found = found.get("test") or next(iter(found.values()))
        for number, record in enumerate(found):
            try:
                yield parse(record, number)
            except ValueError as error:
                raise ArtifactError(f"{name}, row {number}: found {error}") from error


def _spelled(name: str) -> str:
    plain = name.lower().replace("-", "_")
    return SPELLINGS.get(plain, plain)


# --- a line --------------------------------------------------------------------------------------


def _parser(suite: str, system: str) -> Parse:
    """What reads the lines of one file, and finds an id that comes twice."""
    seen: dict[str, int] = {}

    def parse(record: dict[str, Any], number: int) -> Question:
        question = _question(record, number, suite, system)
        first = seen.setdefault(question.id, number)
        if first != number:
            raise ValueError(f"the id {question.id!r} for the second time (first in {first})")
        return question

    return parse


def _question(record: dict[str, Any], number: int, suite: str, system: str) -> Question:
    own, turns = _turns(record)
    category = record.get("category") or suite
    if not isinstance(category, str):
        raise ValueError(f"category={category!r:.60}, wanted text")
    found = Question(_id(record, number, suite), suite, category, "", turns, own or system, _texts(record))
    domain = record.get("domain") or BENCHMARKS.get(suite) or SPEC_BENCH.get(found.group) or suite
    if not isinstance(domain, str):
        raise ValueError(f"domain={domain!r:.60}, wanted text")
    return replace(found, domain=_spelled(domain))


def _id(record: dict[str, Any], number: int, suite: str) -> str:
    value = next((record[key] for key in IDS if record.get(key) not in (None, "")), number)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"the id {value!r:.60}, wanted text or a whole number")
    return value if isinstance(value, str) else f"{suite}-{value}"


def _turns(record: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """System prompt and what the user asks, turn by turn."""
    messages = parse_messages(record["messages"]) if record.get("messages") else ()
    if any(message["role"] == "assistant" for message in messages):
        raise ValueError("an assistant message; answers are the target's own, so give the user's turns alone")
    asked = next((record[key] for key in TURNS if record.get(key) is not None), None)
    if asked is None:
        asked = [message["content"] for message in messages if message["role"] == "user"]
    if isinstance(asked, str):
        asked = [asked]
    if not isinstance(asked, list | tuple) or not asked:
        keys = ", ".join(sorted(record)) or "none"
        raise ValueError(f"no turns (keys: {keys}), wanted {WANTED}")
    for place, turn in enumerate(asked, start=1):
        if not isinstance(turn, str) or not turn.strip():
            raise ValueError(f"turn {place} that is {turn!r:.60}, wanted text")
    return "\n".join(message["content"] for message in messages if message["role"] == "system"), tuple(asked)


def _texts(record: dict[str, Any]) -> tuple[str, ...]:
    """References that are texts."""
    given = record.get("reference")
    given = [given] if isinstance(given, str) else given
    return tuple(one for one in given if isinstance(one, str)) if isinstance(given, list | tuple) else ()
