"""Loads the prompts of a domain from a grammar, a JSONL file or a data set, in three disjoint splits."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import chain, islice

from drafterforge.config.data import DataConfig, DomainConfig
from drafterforge.config.evaluation import MIN_VERDICT
from drafterforge.config.progress import say
from drafterforge.data.rows import Row
from drafterforge.data.served import served_rows
from drafterforge.data.sources import hf_rows, jsonl_rows
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.prompts import grammar
from drafterforge.prompts.prompt import Prompt

log = logging.getLogger(__name__)

SPLITS = ("train", "val", "test")
SHARES = {"train": 0.9, "val": 0.05, "test": 0.05}  # of the largest split that move to an empty one
SMALL = 160  # prompts of which 5 % are enough held-out prompts; fewer are split by `_hold_out`
SAMPLE = 1000  # rows of a stream that show how large its groups are
HELD_OUT = 8, 5  # prompts of each held-out split of a small set: the first, but no more than 1 / the second of all


def load_prompts(data: DataConfig, domain: DomainConfig, seed: int) -> dict[str, list[Prompt]]:
    """Returns at most `data.num_*` distinct prompts each for train, val and test.

    A prompt's split depends on its task alone, or on the opening of its conversation, so no run trains on another run's
    test prompts. Where a file has few tasks, it depends on the prompt's text. Of a small file or data set without
    `split` keys, and of a grammar that has no task of some split, it also depends on the other prompts, because more of
    them are held out. The seed decides which prompts of a split are used.
    """
    limits = {"train": data.num_train, "val": data.num_val, "test": data.num_test}
    if data.source == "grammar":
        return _from_grammars(data, domain, limits, seed)
    if data.source == "jsonl":
        rows = _rename_domains(jsonl_rows(data.path, data.licences), data.domain_names, domain.name, data.path)
        rows.sort(key=lambda row: _seeded(prompt_text(row), seed))
        weights = _positive_weights(domain.weights)
        domains = {*weights} or {domain.name}
        if any(row.domain in domains for row in rows):
            rows = _of_domains(rows, domains, domain.name, data.path)
            if weights:
                return _mixed_rows(rows, domain.name, weights, limits, data.path)
        where = data.path
    elif data.source == "recorded":
        rows = sorted(served_rows(data.path), key=lambda row: _seeded(prompt_text(row), seed))
        where = data.path
    else:
        rows = hf_rows(data, domain, seed)
        where = data.dataset or domain.dataset
    return _split_rows(rows, domain.name, limits, where)


def describe_sizes(prompts: Mapping[str, Sequence[Prompt]]) -> str:
    """Sizes of the splits in words, and whether the held-out prompts are too few for a verdict."""
    sizes = {split: len(prompts[split]) for split in SPLITS}
    words = f"{sum(sizes.values())} prompts: {', '.join(f'{size} {split}' for split, size in sizes.items())}"
    if sizes["test"] >= MIN_VERDICT:
        return words
    return f"{words}; with fewer than {MIN_VERDICT} test prompts there is no verdict on a drafter"


def prompt_text(prompt: Prompt | Row) -> str:
    """Returns the text that identifies a prompt: its system and user messages without case and spacing, or its ids."""
    if prompt.transcript:
        return " ".join(map(str, prompt.transcript.ids[: prompt.transcript.prompt_tokens]))
    return _plain_text(prompt.messages)


def opening_text(row: Row) -> str:
    """Returns the part of `prompt_text` that all turns of a conversation share: up to its first user message."""
    if row.transcript:
        return prompt_text(row)
    first_user = [message["role"] for message in row.messages].index("user")
    return _plain_text(row.messages[: first_user + 1])


def _plain_text(messages: Sequence[Mapping[str, str]]) -> str:
    texts = (message["content"] for message in messages if message["role"] != "assistant")
    return "\n".join(" ".join(text.lower().split()) for text in texts)


# --- grammars ------------------------------------------------------------------------------------


def _from_grammars(
    data: DataConfig, domain: DomainConfig, limits: dict[str, int], seed: int
) -> dict[str, list[Prompt]]:
    if data.answers == "given":
        raise ConfigError("a grammar has no answers; type data=jsonl path=FILE.jsonl, or data.answers=target")
    weights = _positive_weights(domain.weights)
    if weights and data.path:
        raise ConfigError(f"path={data.path} is the grammar of one domain; domain={domain.name} mixes several")
    if not weights and not domain.grammar:
        raise ConfigError(f"domain={domain.name} has no prompt grammar; type data=jsonl path=FILE.jsonl or data=hf")
    weights = weights or {domain.name: 1.0}
    prompts: dict[str, list[Prompt]] = {}
    seen: set[str] = set()
    for split in ("test", "val", "train"):  # a text drawn for several splits stays in the held-out one
        counts = shares(weights, limits[split])
        prompt_lists = [_draw(name, split, count, seed, data.path) for name, count in counts.items() if count]
        prompts[split] = [p for p in interleave(prompt_lists) if _add_if_new(prompt_text(p), seen)]
    for split in SPLITS:
        if not prompts[split]:
            raise ArtifactError(
                f"{data.path or domain.name} has no {split} prompts: train, val and test need at least one task each, "
                "with prompts that no other task has; add tasks to the grammar"
            )
    return {split: prompts[split] for split in SPLITS}


def _draw(domain: str, split: str, count: int, seed: int, path: str) -> list[Prompt]:
    draws = grammar.draw_prompts(domain, split, count, seed, path)
    if len(draws) < count:
        say(f"the {domain} grammar has only {len(draws):,} distinct {split} prompts, not {count:,}; all are used")
    return [
        Prompt(
            id=f"{domain}-{split}-{number:05d}",
            domain=domain,
            task=draw.task,
            messages=({"role": "user", "content": draw.text},),
            source="grammar",
        )
        for number, draw in enumerate(draws)
    ]


def _positive_weights(weights: dict[str, float]) -> dict[str, float]:
    return {name: weight for name, weight in weights.items() if weight > 0}


def shares(weights: dict[str, float], total: int) -> dict[str, int]:
    """Splits `total` in proportion to the weights (largest remainder method)."""
    exact = {name: total * weight / sum(weights.values()) for name, weight in weights.items()}
    counts = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(weights, key=lambda name: (counts[name] - exact[name], name))
    for name in by_remainder[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


def capped_shares(available: dict[str, int], weights: dict[str, float], total: int) -> dict[str, int]:
    """Splits `total` as `shares` does, but no domain gets more than it has; the others get the excess."""
    weights, counts = {name: weights[name] for name in available}, {}
    while exceeding := [name for name, count in shares(weights, total).items() if count > available[name]]:
        for name in exceeding:
            counts[name] = available[name]
            total -= available[name]
            del weights[name]
    return counts | shares(weights, total)


def interleave(lists: list[list[Prompt]]) -> list[Prompt]:
    """Merges the lists so that any prefix has about the same mix as the complete list."""
    ranked = [
        ((index + 0.5) / len(prompts), order, prompt)
        for order, prompts in enumerate(lists)
        for index, prompt in enumerate(prompts)
    ]
    return [prompt for _, _, prompt in sorted(ranked, key=lambda item: item[:2])]


# --- rows of a file or a data set ----------------------------------------------------------------


def _rename_domains(rows: Iterable[Row], names: dict[str, str], domain: str, where: str) -> list[Row]:
    """Renames the rows' domains (default: `domain`); warns about names that no row has."""
    rows = [replace(row, domain=row.domain or domain) for row in rows]
    domains = {row.domain for row in rows}
    for name in names:
        if name not in domains:
            listed = ", ".join(sorted(domains))
            log.warning("data.domain_names renames %s, but %s has only %s", name, where, listed)
    return [replace(row, domain=names.get(row.domain, row.domain)) for row in rows]


def _of_domains(rows: list[Row], domains: Collection[str], domain: str, where: str) -> list[Row]:
    """The rows of these domains; warns about the others.  domain: the command's, which rows without one have."""
    dropped = Counter(row.domain for row in rows if row.domain not in domains)
    if dropped:
        names = [(name if name != domain else "none", count) for name, count in dropped.most_common()]
        counts = ", ".join(f"{name} {count}" for name, count in names)
        name = next((name for name, _ in names if name != "none"), "")
        if domain in domains:
            reason, remedy = "of other domains", f"type data.domain_names={{{name}: {domain}}} to use those of {name}"
        else:
            reason = "of domains without a weight"
            remedy = (
                f"type data.domain_names={{{name}: OURS}}, or domain.weights.{name}=1" if name else "name their domain"
            )
        log.warning("%s: dropped %d lines %s (%s); %s", where, dropped.total(), reason, counts, remedy)
    return [row for row in rows if row.domain in domains]


def _mixed_rows(
    rows: list[Row], domain: str, weights: dict[str, float], limits: dict[str, int], where: str
) -> dict[str, list[Prompt]]:
    """Mixes the rows' domains by weight, in each split."""
    splits = _split_rows(rows, domain, dict.fromkeys(SPLITS, len(rows)), where)
    for split, prompts in splits.items():
        by_domain = {name: [prompt for prompt in prompts if prompt.domain == name] for name in weights}
        counts = capped_shares({name: len(group) for name, group in by_domain.items()}, weights, limits[split])
        splits[split] = interleave([by_domain[name][:count] for name, count in counts.items() if count])
    return splits


def _split_rows(rows: Iterable[Row], domain: str, limits: dict[str, int], where: str) -> dict[str, list[Prompt]]:
    sample = rows if isinstance(rows, list) else list(islice(rows, SAMPLE))
    group_of = _group_key(sample, where)
    assigned: list[tuple[Row, str]] = []
    counts = dict.fromkeys(SPLITS, 0)
    seen: set[str] = set()
    repeated = 0
    for row in rows if sample is rows else chain(sample, rows):
        if not _add_if_new(prompt_text(row), seen):
            repeated += 1
            continue
        split = row.split or grammar.split_of(group_of(row))
        if len(seen) <= SMALL or counts[split] < limits[split] or not all(counts.values()):
            assigned.append((row, split))
            counts[split] += 1
        elif all(counts[name] >= limits[name] for name in SPLITS):
            break  # do not read a stream further than needed
    if repeated:
        log.info("%s: %d repeated prompts dropped", where, repeated)
    if not assigned:
        raise ArtifactError(f"{where} has no prompts; type path=FILE or dataset=ID with prompts")
    if len(assigned) < len(SPLITS):
        raise ArtifactError(
            f"{where} has {len(assigned)} distinct prompts, but train, val and test need one each; "
            f"add at least {len(SPLITS) - len(assigned)}"
        )
    if len(seen) < SMALL and not any(row.split for row, _ in assigned):
        assigned = _hold_out(assigned, group_of)
    splits: dict[str, list[Prompt]] = {split: [] for split in SPLITS}
    ids: set[str] = set()
    for row, split in _fill_empty(assigned, group_of, limits, where):
        if len(splits[split]) < limits[split]:
            splits[split].append(_prompt(row, domain, ids))
    return splits


def _group_key(rows: Sequence[Row], where: str) -> Callable[[Row], str]:
    """What the split of a row without one depends on: its task, else how its conversation opens.

    Lines that log a conversation after each turn open alike, so all of them are in one split.  Where a group of lines
    is so large that a split could be nothing else, the next smaller groups are used: openings, then single texts.
    """
    distinct = {prompt_text(row): row for row in rows if not row.split}.values()
    most = len(distinct) // 10 if len(distinct) >= SMALL else -(-len(distinct) // HELD_OUT[1])
    keys = [("first messages", opening_text), ("texts", prompt_text)]
    if any(row.task for row in rows):
        keys = [("tasks", lambda row: row.task or opening_text(row)), *keys]
    reasons = []
    for name, group_of in keys:
        largest = max(Counter(map(group_of, distinct)).values(), default=0)
        if largest <= most:
            break
        reasons.append(f"{largest} of {len(distinct)} lines have equal {name}")
    if reasons:
        reason = " and ".join(reasons)
        log.warning(
            "%s: %s, so lines are split by their %s; test prompts resemble training prompts", where, reason, name
        )
    return group_of


def _hold_out(assigned: list[tuple[Row, str]], group_of: Callable[[Row], str]) -> list[tuple[Row, str]]:
    """Moves whole groups of a small set from train to test and val until each has as many prompts as `HELD_OUT` says.

    The groups are the same whatever the seed.
    """
    groups: dict[str, list[int]] = {}  # training rows
    for index, (row, split) in enumerate(assigned):
        if split == "train":
            groups.setdefault(group_of(row), []).append(index)
    splits = [split for _, split in assigned]
    least, share = HELD_OUT
    for split in ("test", "val"):
        missing = min(least, len(assigned) // share) - splits.count(split)
        for group in sorted(groups, key=lambda group: _seeded(group, 0)):
            if len(groups[group]) <= missing:
                missing -= len(groups[group])
                for index in groups.pop(group):
                    splits[index] = split
    return [(row, split) for (row, _), split in zip(assigned, splits, strict=True)]


def _prompt(row: Row, domain: str, ids: set[str]) -> Prompt:
    domain = row.domain or domain
    name = row.id or f"{domain}-{row.number:06d}"
    while name in ids:  # lines of several files have equal numbers
        name = f"{name}#{row.number}"
    ids.add(name)
    return Prompt(name, domain, row.task or "", row.messages, row.source, row.transcript)


def _fill_empty(
    assigned: list[tuple[Row, str]], group_of: Callable[[Row], str], limits: dict[str, int], where: str
) -> list[tuple[Row, str]]:
    """Moves whole groups from the largest split to each empty one; single rows if it has one group only."""
    splits = [split for _, split in assigned]
    for split in SPLITS:
        if split in splits:
            continue
        donor = max(SPLITS, key=splits.count)
        size = splits.count(donor)
        num_wanted = min(limits[split], size - 1, max(1, round(SHARES[split] * size)))
        groups: dict[str, list[int]] = {}
        for index, (row, _) in enumerate(assigned):
            if splits[index] == donor:
                groups.setdefault(group_of(row), []).append(index)
        moved: list[int] = []
        for group in sorted(groups, key=lambda group: _seeded(group, 0)):
            if len(moved) < num_wanted and len(moved) + len(groups[group]) <= max(size // 2, num_wanted):
                moved += groups[group]
        remark = ""
        if not moved:
            held_out = donor if split == "train" else split
            remark = f"; both now have prompts of the same task, so {held_out} prompts are not new"
            rows = [index for group in groups.values() for index in group]
            moved = sorted(rows, key=lambda index: _seeded(prompt_text(assigned[index][0]), 0))[:num_wanted]
        for index in moved:
            splits[index] = split
        log.warning(
            "%s has no %s prompts: moved %d prompts from %s to %s%s", where, split, len(moved), donor, split, remark
        )
    return [(row, split) for (row, _), split in zip(assigned, splits, strict=True)]


def _add_if_new(text: str, seen: set[str]) -> bool:
    """Adds a text to `seen`; False if it was there."""
    new = text not in seen
    seen.add(text)
    return new


def _seeded(text: str, seed: int) -> bytes:
    return sha256(f"{seed}/{text}".encode("utf-8", "surrogatepass")).digest()
