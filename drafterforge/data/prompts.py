"""Prompts of a domain in three disjoint splits, from a grammar, a JSONL file or a data set."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256

from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.data.sources import Row, hf_rows, jsonl_rows
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.prompts import grammar
from drafterforge.prompts.prompt import Prompt

log = logging.getLogger(__name__)

SPLITS = ("train", "val", "test")
_REFILL = 0.05  # share of the prompts that an empty split is given


def load_prompts(data: DataConfig, domain: DomainConfig, seed: int) -> dict[str, list[Prompt]]:
    """Returns at most `data.num_*` distinct prompts each for train, val and test.

    A prompt's split depends on its task (or its text) alone, never on the seed, so that nobody's
    test prompt is another run's training prompt; the seed picks which prompts are taken.
    """
    limits = {"train": data.num_train, "val": data.num_val, "test": data.num_test}
    if data.source == "grammar":
        return _from_grammars(data, domain, limits, seed)
    if data.source == "jsonl":
        rows = _renamed(jsonl_rows(data.path, data.licences), data.domain_names, domain.name, data.path)
        rows.sort(key=lambda row: _seeded(prompt_text(row), seed))
        weights = _positive(domain.weights)
        if any(row.domain in weights for row in rows):
            return _mixed_rows(rows, domain.name, weights, limits, data.path)
        where = data.path
    else:
        rows = hf_rows(data, domain, seed)
        where = data.dataset or domain.dataset
    return _split_rows(rows, domain.name, limits, where)


def prompt_text(prompt: Prompt | Row) -> str:
    """Returns what makes two prompts the same: all that was asked, without case and spacing."""
    asked = (m["content"] for m in prompt.messages if m["role"] != "assistant")
    return "\n".join(" ".join(text.lower().split()) for text in asked)


# --- grammars ------------------------------------------------------------------------------------


def _from_grammars(
    data: DataConfig, domain: DomainConfig, limits: dict[str, int], seed: int
) -> dict[str, list[Prompt]]:
    if data.answers == "given":
        raise ConfigError("a grammar has no answers; type data=jsonl path=FILE.jsonl, or data.answers=target")
    weights = _positive(domain.weights)
    if weights and data.path:
        raise ConfigError(f"path={data.path} is the grammar of one domain; domain={domain.name} mixes several")
    if not weights and not domain.grammar:
        raise ConfigError(f"domain={domain.name} has no prompt grammar; type data=jsonl path=FILE.jsonl or data=hf")
    weights = weights or {domain.name: 1.0}
    prompts: dict[str, list[Prompt]] = {}
    seen: set[str] = set()
    for split in ("test", "val", "train"):  # a text drawn twice stays where it is held out
        counts = shares(weights, limits[split])
        drawn = [_drawn(name, split, count, seed, data.path) for name, count in counts.items() if count]
        prompts[split] = [p for p in interleave(drawn) if not _repeated(prompt_text(p), seen)]
    return {split: prompts[split] for split in SPLITS}


def _drawn(domain: str, split: str, count: int, seed: int, path: str) -> list[Prompt]:
    return [
        Prompt(
            id=f"{domain}-{split}-{number:05d}",
            domain=domain,
            task=draw.task,
            messages=({"role": "user", "content": draw.text},),
            source="grammar",
        )
        for number, draw in enumerate(grammar.draw_prompts(domain, split, count, seed, path))
    ]


def _positive(weights: dict[str, float]) -> dict[str, float]:
    return {name: weight for name, weight in weights.items() if weight > 0}


def shares(weights: dict[str, float], total: int) -> dict[str, int]:
    """Returns `total` cut in proportion to the weights, by largest remainder."""
    exact = {name: total * weight / sum(weights.values()) for name, weight in weights.items()}
    counts = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(weights, key=lambda name: (counts[name] - exact[name], name))
    for name in by_remainder[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


def shares_of(held: dict[str, int], weights: dict[str, float], total: int) -> dict[str, int]:
    """Returns such shares of which none exceeds what its domain holds: the others fill up, as far as they can."""
    weights, counts = {name: weights[name] for name in held}, {}
    while short := [name for name, count in shares(weights, total).items() if count > held[name]]:
        for name in short:
            counts[name] = held[name]
            total -= held[name]
            del weights[name]
    return counts | shares(weights, total)


def interleave(lists: list[list[Prompt]]) -> list[Prompt]:
    """Returns all prompts in one list in which every prefix has about the shares of the whole."""
    placed = [
        ((index + 0.5) / len(prompts), order, prompt)
        for order, prompts in enumerate(lists)
        for index, prompt in enumerate(prompts)
    ]
    return [prompt for _, _, prompt in sorted(placed, key=lambda item: item[:2])]


# --- rows of a file or a data set ----------------------------------------------------------------


def _renamed(rows: Iterable[Row], names: dict[str, str], domain: str, where: str) -> list[Row]:
    """The rows with domains as we call them; a row without is of `domain`.  Names that no row has are told."""
    rows = [replace(row, domain=row.domain or domain) for row in rows]
    found = {row.domain for row in rows}
    for name in names:
        if name not in found:
            there = ", ".join(sorted(found))
            log.warning("%s has no lines of %s, which data.domain_names renames; it has: %s", where, name, there)
    return [replace(row, domain=names.get(row.domain, row.domain)) for row in rows]


def _mixed_rows(
    rows: list[Row], domain: str, weights: dict[str, float], limits: dict[str, int], where: str
) -> dict[str, list[Prompt]]:
    """The weighted mixture of the rows' domains, in splits."""
    others = Counter(row.domain for row in rows if row.domain not in weights)
    if others:
        said = [(name if name != domain else "none", count) for name, count in others.most_common()]
        counts = ", ".join(f"{name} {count}" for name, count in said)
        name = next((name for name, _ in said if name != "none"), "")
        todo = f"type data.domain_names={{{name}: OURS}}, or domain.weights.{name}=1" if name else "name them there"
        log.warning("%s: %d lines of domains without a weight left out (%s); %s", where, others.total(), counts, todo)
    rows = [row for row in rows if row.domain in weights]
    splits = _split_rows(rows, domain, dict.fromkeys(SPLITS, len(rows)), where)
    for split, prompts in splits.items():
        of = {name: [prompt for prompt in prompts if prompt.domain == name] for name in weights}
        counts = shares_of({name: len(found) for name, found in of.items()}, weights, limits[split])
        splits[split] = interleave([of[name][:count] for name, count in counts.items() if count])
    return splits


def _split_rows(rows: Iterable[Row], domain: str, limits: dict[str, int], where: str) -> dict[str, list[Prompt]]:
    splits: dict[str, list[Prompt]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    ids: set[str] = set()
    repeated = 0
    for row in rows:
        text = prompt_text(row)
        if _repeated(text, seen):
            repeated += 1
            continue
        split = row.split or grammar.split_of(row.task or text)
        if len(splits[split]) < limits[split]:
            splits[split].append(_prompt(row, domain, ids))
        elif all(len(splits[name]) >= limits[name] for name in SPLITS):
            break  # a stream is not read further than needed
    if repeated:
        log.info("%s: %d repeated prompts dropped", where, repeated)
    found = sum(map(len, splits.values()))
    if not found:
        raise ArtifactError(f"{where} has no prompts; type path=FILE or dataset=ID of one that has")
    if found < len(SPLITS):
        raise ArtifactError(
            f"{where} has {found} distinct prompts, but train, val and test need one each; "
            f"add at least {len(SPLITS) - found}"
        )
    _fill_empty(splits, where)
    return splits


def _prompt(row: Row, domain: str, ids: set[str]) -> Prompt:
    domain = row.domain or domain
    name = row.id or f"{domain}-{row.number:06d}"
    if name in ids:
        name = f"{name}#{row.number}"
    ids.add(name)
    return Prompt(name, domain, row.task or "", row.messages, row.source)


def _fill_empty(splits: dict[str, list[Prompt]], where: str) -> None:
    """Gives an empty split whole tasks of the largest, or single prompts where it has one task."""
    for split in SPLITS:
        if splits[split]:
            continue
        donor = max(splits, key=lambda name: len(splits[name]))
        size = len(splits[donor])
        wanted = max(1, round(_REFILL * size))
        groups: dict[str, list[Prompt]] = {}
        for prompt in splits[donor]:
            groups.setdefault(prompt.task or prompt_text(prompt), []).append(prompt)
        moved: list[Prompt] = []
        for _, group in sorted(groups.items(), key=lambda item: _seeded(item[0], 0)):
            if len(moved) < wanted and len(moved) + len(group) <= size // 2:
                moved += group
        shared = "" if moved else ", of tasks that stay there too"
        moved = moved or sorted(splits[donor], key=lambda p: _seeded(prompt_text(p), 0))[:wanted]
        taken = {prompt.id for prompt in moved}
        splits[split] = moved
        splits[donor] = [prompt for prompt in splits[donor] if prompt.id not in taken]
        log.warning("%s has no %s prompts: %d taken from %s%s", where, split, len(moved), donor, shared)


def _repeated(text: str, seen: set[str]) -> bool:
    """Whether the text was seen before; it is from now on."""
    if text in seen:
        return True
    seen.add(text)
    return False


def _seeded(text: str, seed: int) -> bytes:
    return sha256(f"{seed}/{text}".encode("utf-8", "surrogatepass")).digest()
