"""One or several `answers` artifacts as one set of rows, none of whose training prompts is held out by any of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from drafterforge.artifacts.manifest import Manifest
from drafterforge.data.answers import SPLITS, Answer, AnswerRows, AnswerSet, Rows
from drafterforge.errors import ArtifactError, ConfigError

log = logging.getLogger(__name__)


class JoinedRows(Rows):
    """Answers of one split, of several artifacts."""

    def __init__(self, parts: Sequence[AnswerRows], places: np.ndarray) -> None:
        """parts: the whole split of each artifact.  places: [N, 2], artifact and row of each answer."""
        self.parts, self.places = parts, places

    def __len__(self) -> int:
        return len(self.places)

    def answer(self, item: int) -> Answer:
        """Returns one answer."""
        part, row = self.places[item].tolist()
        return self.parts[part][row]

    def arrays(self, item: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (input_ids int32, loss_mask uint8) of one answer, read-only, without a copy."""
        part, row = self.places[item].tolist()
        return self.parts[part].arrays(row)


class JoinedAnswers:
    """`answers` artifacts of one target to learn from.

    Of several, a prompt is taken from the first that has it, and no prompt is learned from that one of them holds out.
    """

    def __init__(
        self, sets: Sequence[AnswerSet], num_train: int | None = None, held_out: Sequence[AnswerSet] = ()
    ) -> None:
        """num_train: learn from so many answers only; null: from all.

        held_out: what val and test rows are taken from; empty: `sets`.
        """
        self.learned, self.held_out, self.num_train = list(sets), list(held_out), num_train
        folders = {one.path.resolve() for one in sets}
        self.sets = self.learned + [one for one in held_out if one.path.resolve() not in folders]
        names = [one.path.name for one in self.sets]
        self.where = ", ".join(str(one.path) for one in self.sets)
        for name in {name for name in names if names.count(name) > 1}:
            raise ConfigError(
                f"answers={self.where}: two folders are called {name}, by which their features are kept; "
                "name artifacts whose folders' names differ"
            )
        holding = {one.path.resolve() for one in held_out or sets}
        self._kept = {}
        for split in SPLITS:
            read = folders if split == "train" else holding
            self._kept[split] = [np.full(len(one.rows(split)), one.path.resolve() in read) for one in self.sets]
        if len(self.sets) > 1:
            self._leave_out_repeats()
        self._rows: dict[tuple[str, str], JoinedRows] = {}

    @property
    def manifests(self) -> list[Manifest]:
        """Of every artifact."""
        return [one.manifest for one in self.sets]

    @property
    def digest(self) -> str | list[str]:
        """What a drafter records of those learned from: the digest, or one for each of several."""
        digests = [one.manifest.digest for one in self.learned]
        return digests[0] if len(digests) == 1 else digests

    @property
    def recorded(self) -> dict[str, object]:
        """What a drafter records of them all; of those held out nothing where they are the same."""
        val = [one.manifest.digest for one in self.held_out]
        return {"answers": self.digest, **({"val_answers": val} if val else {})}

    def rows(self, split: str = "train", domain: str = "") -> JoinedRows:
        """Returns the answers of a split; every beginning of several artifacts' has about the shares of the whole.

        domain: where one of them holds answers of this domain, these only.
        """
        if (split, domain) not in self._rows:
            self._rows[split, domain] = self._chosen(split, domain)
        return self._rows[split, domain]

    def token_counts(self, vocab_size: int, split: str = "train", domain: str = "") -> np.ndarray:
        """Returns how often each target id was emitted in the answers, [V] int64."""
        rows = self.rows(split, domain)
        emitted = np.concatenate([ids[mask == 1] for ids, mask in map(rows.arrays, range(len(rows)))])
        if emitted.size and emitted.max() >= vocab_size:
            raise ArtifactError(
                f"{self.where} holds token id {emitted.max()}, but the target has {vocab_size} "
                "ids; type `drafterforge prepare-data overwrite=true`"
            )
        return np.bincount(emitted, minlength=vocab_size).astype(np.int64)

    def _chosen(self, split: str, domain: str) -> JoinedRows:
        held = [manifest.metrics["domains"] for manifest in self.manifests]
        names = {name for domains in held for name in domains}
        domain = domain if domain in names and len(names) > 1 else ""
        parts, kept = [one.rows(split) for one in self.sets], self._kept[split]
        if domain:
            kept = [mask & (rows.domains == domain) for mask, rows in zip(kept, parts, strict=True)]
            lacking = [one.path.name for one, domains in zip(self.learned, held, strict=False) if domain not in domains]
            if lacking and split == "train":
                log.warning("no %s answers in %s: learned from the others alone", domain, ", ".join(lacking))
        places = np.array([(part, row) for part, mask in enumerate(kept) for row in np.flatnonzero(mask)], np.int64)
        whose = f" of {domain}" if domain else ""
        if not len(places):
            raise ArtifactError(
                f"{self.where} has no {split} answers{whose}; make it with data.num_{split}={len(names)} or more"
            )
        wanted = self.num_train if split == "train" else None
        if wanted and wanted > len(places):
            raise ConfigError(
                f"trainer.num_answers={wanted}, but {self.where} has {len(places)} training answers{whose}; "
                f"type trainer.num_answers={len(places)} at most, or leave it out"
            )
        if wanted or len(parts) > 1:
            domains = [rows.domains for rows in parts]
            places = places[spread([(part, domains[part][row]) for part, row in places.tolist()])]
        return JoinedRows(parts, places[:wanted])

    def _leave_out_repeats(self) -> None:
        """Mark rows whose prompt another artifact has."""
        prompts = {split: [one.rows(split).prompts() for one in self.sets] for split in SPLITS}
        read = {split: [bool(mask.any()) for mask in self._kept[split]] for split in SPLITS}
        held_out = {
            prompt
            for split in ("val", "test")
            for part, is_read in zip(prompts[split], read[split], strict=True)
            for prompt in (part if is_read else ())
        }
        seen: set[bytes] = set()
        repeated = taught = 0
        for part in range(len(self.sets)):
            new: set[bytes] = set()
            for split in (split for split in SPLITS if read[split][part]):
                for row, prompt in enumerate(prompts[split][part]):
                    is_taught = split == "train" and prompt in held_out
                    is_repeated = not is_taught and prompt in seen
                    taught, repeated = taught + is_taught, repeated + is_repeated
                    self._kept[split][part][row] = keep = not (is_taught or is_repeated)
                    new |= {prompt} if keep else set()
            seen |= new
        if repeated or taught:
            log.warning(
                "%s: left out %d answers to prompts of an artifact named earlier, and %d training answers to prompts "
                "that one of them holds out",
                ", ".join(one.path.name for one in self.sets),
                repeated,
                taught,
            )


def spread(groups: Sequence[object]) -> np.ndarray:
    """Returns an order of rows, each of a group, in which every beginning has about the groups' shares of the whole.

    Within a group the order stays.
    """
    totals: dict[object, int] = {}
    numbers = []
    for group in groups:
        numbers.append(totals.get(group, 0))
        totals[group] = numbers[-1] + 1
    at = [(number + 0.5) / totals[group] for number, group in zip(numbers, groups, strict=True)]
    return np.argsort(np.array(at), kind="stable")
