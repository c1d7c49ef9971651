"""A domain's tasks, their writers, and seeded draws of prompts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path

from drafterforge.errors import ConfigError
from drafterforge.prompts.domains import domains, grammar_path
from drafterforge.prompts.files import Writer, read_grammar, read_tasks

SPLITS = ("train", "val", "test")
ATTEMPTS = 12  # phrasings to try before a task counts as exhausted


@dataclass(frozen=True)
class Draw:
    """One prompt and its task."""

    task: str  # the question without phrasing, names or numbers; all prompts of a task are in the same split
    text: str  # the user message


class Grammar:
    """A domain's tasks and their writers, which phrase a task in many ways."""

    def __init__(self, domain: str, tasks: Callable[[], Iterable[tuple[str, Writer]]]) -> None:
        self.domain = domain
        self._tasks = tasks

    @classmethod
    def open(cls, domain: str, path: str | Path) -> Grammar:
        """Read a grammar file, on first use."""
        return cls(domain, lambda: read_tasks(path))

    @cached_property
    def writers(self) -> dict[str, Writer]:
        """The writers of all tasks, in the order of the file."""
        writers: dict[str, Writer] = {}
        for task, writer in self._tasks():
            if task in writers:
                raise ConfigError(f"the {self.domain} grammar has the task {task!r} twice")
            writers[task] = writer
        return writers

    @cached_property
    def tasks(self) -> dict[str, list[str]]:
        """The tasks of each split.  An empty split gets tasks of the largest one, unless that has a single task."""
        tasks: dict[str, list[str]] = {split: [] for split in SPLITS}
        for task in self.writers:
            tasks[split_of(task)].append(task)
        for split in SPLITS:
            donor = max(tasks.values(), key=len)
            if not tasks[split] and len(donor) > 1:
                count = max(1, len(donor) // (2 if split == "train" else 20))
                tasks[split] = sorted(donor, key=_digest)[:count]
                for task in tasks[split]:
                    donor.remove(task)
        return tasks

    def draws(self, split: str, seed: int) -> Iterator[Draw]:
        """Yield distinct prompts of a split: one phrasing of each task, then a second of each, until none is new."""
        rng = random.Random(f"{self.domain}/{split}/{seed}")
        tasks = self.tasks[split].copy()
        rng.shuffle(tasks)
        seen: set[str] = set()
        while tasks:
            unused = []
            for task in tasks:
                text = self._unseen(task, seen, rng)
                if text is not None:
                    seen.add(text)
                    unused.append(task)
                    yield Draw(task, text)
            tasks = unused

    def _unseen(self, task: str, seen: set[str], rng: random.Random) -> str | None:
        texts = (self.writers[task](rng) for _ in range(ATTEMPTS))
        return next((text for text in texts if text not in seen), None)


def split_of(task: str) -> str:
    """The split of a task, a function of its text alone: 90 % train, 5 % val, 5 % test."""
    share = int.from_bytes(_digest(task)[:8], "big") % 100
    return "train" if share < 90 else "val" if share < 95 else "test"


def _digest(task: str) -> bytes:
    return sha256(task.encode()).digest()


@cache
def grammar(domain: str, path: str = "") -> Grammar:
    """The grammar of a domain, from the package or from the file `path`."""
    if not path and domain not in domains():
        raise ConfigError(f"no grammar for domain {domain!r}; type one of {', '.join(domains())}")
    return Grammar.open(domain, path or grammar_path(domain))


def carries_text(domain: str) -> bool:
    """Whether the domain's requests contain a text, to summarize or translate, that must not be rephrased."""
    return domain in domains() and bool(read_grammar(grammar_path(domain)).get("carries_text"))


def draw_prompts(domain: str, split: str, count: int, seed: int, path: str = "") -> list[Draw]:
    """The first `count` distinct prompts of a split, in the order of `seed`; all, if there are fewer."""
    source = grammar(domain, path)
    if split not in SPLITS:
        raise ConfigError(f"no split {split!r}; type one of {', '.join(SPLITS)}")
    return list(islice(source.draws(split, seed), count))
