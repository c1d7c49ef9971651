"""Prompt grammars: tasks, the writers that phrase them, and the seeded order of the draws."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import islice

from drafterforge.errors import ConfigError

Writer = Callable[[random.Random], str]  # phrases one task as a user message

SPLITS = ("train", "val", "test")
ATTEMPTS = 12  # phrasings tried before a task counts as used up
VOWEL_SOUND = ("hour", "honest", "heir", "8", "11", "18", "mri ", "fbi ")
IE_WORDS = {"movies", "cookies", "pies", "ties", "calories", "smoothies", "brownies", "hoodies"}
CONSONANT_SOUND = ("uni", "use", "usa", "usu", "eu", "one", "once", "ukulele", "ute", "url")


@dataclass(frozen=True)
class Draw:
    """One prompt and the task behind it."""

    task: str  # what is asked, without phrasing, names or numbers: the unit of the split
    text: str  # the user message


class Grammar:
    """A domain's tasks, each with a writer that phrases it in many ways."""

    def __init__(self, domain: str, tasks: Callable[[], Iterable[tuple[str, Writer]]]) -> None:
        self.domain = domain
        self._tasks = tasks

    @cached_property
    def writers(self) -> dict[str, Writer]:
        """Every task of the domain with its writer, in the order of the word lists."""
        writers: dict[str, Writer] = {}
        for task, writer in self._tasks():
            assert task not in writers, f"{self.domain}: two writers for the task {task!r}"
            writers[task] = writer
        return writers

    @cached_property
    def tasks(self) -> dict[str, list[str]]:
        """The tasks of each split."""
        tasks: dict[str, list[str]] = {split: [] for split in SPLITS}
        for task in self.writers:
            tasks[split_of(task)].append(task)
        return tasks

    def draws(self, split: str, seed: int) -> Iterator[Draw]:
        """Every distinct prompt of a split: one phrasing of each task, then a second, and so on."""
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
    """Split of a task, a pure function of its text: 90 % train, 5 % val, 5 % test."""
    share = int.from_bytes(sha256(task.encode()).digest()[:8], "big") % 100
    return "train" if share < 90 else "val" if share < 95 else "test"


def draw_prompts(domain: str, split: str, count: int, seed: int) -> list[Draw]:
    """The first `count` distinct prompts of a split in the order of `seed`."""
    from drafterforge.data.grammars import GRAMMARS  # the registry imports this module

    if domain not in GRAMMARS:
        raise ConfigError(f"no grammar for domain={domain}; type one of {', '.join(GRAMMARS)}")
    if split not in SPLITS:
        raise ConfigError(f"no split {split!r}; type one of {', '.join(SPLITS)}")
    draws = list(islice(GRAMMARS[domain].draws(split, seed), count))
    if len(draws) < count:
        raise ConfigError(
            f"the {domain} grammar has only {len(draws)} distinct {split} prompts, "
            f"{count} were asked; type data.num_{split}={len(draws)}"
        )
    return draws


def fill(rng: random.Random, template: str, /, **slots: object) -> str:
    """`template` with its {slots} filled.

    A slot is a value, a list, tuple or range to draw one item from, or a function of the slots
    before it.
    """
    values: dict[str, object] = {}
    for name, slot in slots.items():
        if callable(slot):
            slot = slot(**values)
        values[name] = rng.choice(slot) if isinstance(slot, list | tuple | range) else slot
    return template.format_map(values)


def phrased(templates: list[str] | tuple[str, ...], **slots: object) -> Writer:
    """A writer that picks one of the templates and fills its slots."""
    return lambda rng: fill(rng, rng.choice(templates), **slots)


def framed(asks: Sequence[str], before: Sequence[str], after: Sequence[str], **slots: object) -> Writer:
    """A writer that puts a request between what the user says about themselves and a wish."""

    def write(rng: random.Random) -> str:
        parts = (rng.choice(before), rng.choice(asks), rng.choice(after))
        return fill(rng, " ".join(part for part in parts if part), **slots)

    return write


def crossed(
    kinds: dict[str, tuple[str, ...]],
    topics: list[str],
    before: tuple[str, ...],
    after: tuple[str, ...],
    **slots: object,
) -> Iterator[tuple[str, Writer]]:
    """Each kind of request for each topic."""
    for kind, asks in kinds.items():
        for topic in topics:
            yield f"{kind}: {topic}", framed(asks, before, after, topic=topic, **slots)


def rows(table: list[str]) -> Iterator[list[str]]:
    """The cells of each line of a word list."""
    return (line.split(" | ") for line in table)


def lines(block: str) -> list[str]:
    """The non-empty lines of a word list."""
    return [line.strip() for line in block.strip().splitlines() if line.strip()]


def an(noun: str) -> str:
    """The noun with its article: an apple, a user, an hour."""
    word = noun.lower()
    vowel = word[0] in "aeiou" and not word.startswith(CONSONANT_SOUND)
    return f"{'an' if vowel or word.startswith(VOWEL_SOUND) else 'a'} {noun}"


def singular(plural: str) -> str:
    """The singular of a regular plural: cities -> city, matches -> match, loans -> loan."""
    if plural.endswith("ies") and plural.split()[-1] not in IE_WORDS:
        return plural[:-3] + "y"
    if plural.endswith(("sses", "ches", "shes", "xes")):
        return plural[:-2]
    return plural.removesuffix("s")


def capital(text: str) -> str:
    """The text with its first letter in upper case, the rest untouched."""
    return text[:1].upper() + text[1:]
