"""Several `answers` artifacts as one training set, without prompts that any of them holds out."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from drafterforge.artifacts.manifest import Manifest
from drafterforge.data.answers import SPLITS, Answer, AnswerRows, AnswerSet, Rows
from drafterforge.errors import ArtifactError, ConfigError

log = logging.getLogger(__name__)


class JoinedRows(Rows):
    """Answers of one split from several artifacts."""

    def __init__(self, parts: Sequence[AnswerRows], locations: np.ndarray) -> None:
        """parts: all rows of each artifact.  locations: artifact and row of each answer, [N, 2]."""
        self.parts, self.locations = parts, locations

    def __len__(self) -> int:
        return len(self.locations)

    def answer(self, item: int) -> Answer:
        part, row = self.locations[item].tolist()
        return self.parts[part][row]

    def arrays(self, item: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (input_ids int32, loss_mask uint8) of one answer, read-only, without a copy."""
        part, row = self.locations[item].tolist()
        return self.parts[part].arrays(row)


class JoinedAnswers:
    """`answers` artifacts of one target to train on.

    A prompt in several artifacts is used once, from the first. No prompt that one of them holds out is trained on.
    """

    def __init__(
        self, sets: Sequence[AnswerSet], num_train: int | None = None, held_out: Sequence[AnswerSet] = ()
    ) -> None:
        """num_train: training answers to use; None: all.  held_out: sources of val and test rows; empty: `sets`."""
        self.learned, self.held_out, self.num_train = list(sets), list(held_out), num_train
        folders = {answers.path.resolve() for answers in sets}
        self.sets = self.learned + [answers for answers in held_out if answers.path.resolve() not in folders]
        names = [answers.path.name for answers in self.sets]
        self.where = ", ".join(str(answers.path) for answers in self.sets)
        for name in {name for name in names if names.count(name) > 1}:
            raise ConfigError(
                f"answers={self.where}: two folders are called {name}, but their features are stored by that name; "
                "rename one of them"
            )
        held_out_folders = {answers.path.resolve() for answers in held_out or sets}
        self._masks: dict[str, list[np.ndarray]] = {}  # by split: the usable rows of each set
        for split in SPLITS:
            folders_read = folders if split == "train" else held_out_folders
            self._masks[split] = [
                np.full(len(answers.rows(split)), answers.path.resolve() in folders_read) for answers in self.sets
            ]
        if len(self.sets) > 1:
            self._mask_repeats()
        self._rows: dict[tuple[str, str], JoinedRows] = {}

    @property
    def manifests(self) -> list[Manifest]:
        return [answers.manifest for answers in self.sets]

    @property
    def digest(self) -> str | list[str]:
        """Digest of the artifact to train on, or one digest each of several, as drafters record it."""
        digests = [answers.manifest.digest for answers in self.learned]
        return digests[0] if len(digests) == 1 else digests

    @property
    def recorded_settings(self) -> dict[str, object]:
        """The settings that a drafter records of its answers; `val_answers` only if they are other artifacts."""
        digests = [answers.manifest.digest for answers in self.held_out]
        return {"answers": self.digest, **({"val_answers": digests} if digests else {})}

    def rows(self, split: str = "train", domain: str = "") -> JoinedRows:
        """Returns the answers of a split; any prefix has about the same mix of artifacts and domains as all of them.

        domain: if any artifact has answers of this domain, only these are returned.
        """
        if (split, domain) not in self._rows:
            self._rows[split, domain] = self._select(split, domain)
        return self._rows[split, domain]

    def token_counts(self, vocab_size: int, split: str = "train", domain: str = "") -> np.ndarray:
        """Returns how often each target id occurs among answer tokens, [V] int64."""
        rows = self.rows(split, domain)
        emitted = np.concatenate([ids[mask == 1] for ids, mask in map(rows.arrays, range(len(rows)))])
        if emitted.size and emitted.max() >= vocab_size:
            raise ArtifactError(
                f"{self.where} has token id {emitted.max()}, but the target has {vocab_size} "
                "ids; type the `prepare-data` command that made it, with overwrite=true"
            )
        return np.bincount(emitted, minlength=vocab_size).astype(np.int64)

    def selected_domain(self, domain: str) -> str:
        """The domain if `rows` selects its answers; empty if it returns all of them."""
        return domain if domain in self._domains and len(self._domains) > 1 else ""

    @property
    def _domains(self) -> set[str]:
        return {name for manifest in self.manifests for name in manifest.metrics["domains"]}

    def _select(self, split: str, domain: str) -> JoinedRows:
        domain = self.selected_domain(domain)
        parts, masks = [answers.rows(split) for answers in self.sets], self._masks[split]
        if domain:
            masks = [mask & (rows.domains == domain) for mask, rows in zip(masks, parts, strict=True)]
            sets_without_domain = [
                answers.path.name for answers in self.learned if domain not in answers.manifest.metrics["domains"]
            ]
            if sets_without_domain and split == "train":
                log.warning("no %s answers in %s: training on the others alone", domain, ", ".join(sets_without_domain))
        locations = np.array([(part, row) for part, mask in enumerate(masks) for row in np.flatnonzero(mask)], np.int64)
        of_domain = f" of {domain}" if domain else ""
        if not len(locations):
            raise ArtifactError(
                f"{self.where} has no {split} answers{of_domain}; "
                f"prepare it with data.num_{split}={len(self._domains)} or more"
            )
        limit = self.num_train if split == "train" else None
        if limit and limit > len(locations):
            raise ConfigError(
                f"trainer.num_answers={limit}, but {self.where} has {len(locations)} training answers{of_domain}; "
                f"type trainer.num_answers={len(locations)} at most, or leave it out"
            )
        if limit or len(parts) > 1:
            domains = [rows.domains for rows in parts]
            locations = locations[proportional_order([(part, domains[part][row]) for part, row in locations.tolist()])]
        return JoinedRows(parts, locations[:limit])

    def _mask_repeats(self) -> None:
        """Unmask rows whose prompt is in an earlier artifact, and training rows whose prompt is held out."""
        prompts = {split: [answers.rows(split).prompts() for answers in self.sets] for split in SPLITS}
        is_used = {split: [bool(mask.any()) for mask in self._masks[split]] for split in SPLITS}
        held_out = {prompt for split in ("val", "test") for part in prompts[split] for prompt in part}
        seen: set[bytes] = set()
        repeated = leaked = 0
        for part in range(len(self.sets)):
            new: set[bytes] = set()
            for split in (split for split in SPLITS if is_used[split][part]):
                for row, prompt in enumerate(prompts[split][part]):
                    is_leaked = split == "train" and prompt in held_out
                    is_repeated = not is_leaked and prompt in seen
                    leaked, repeated = leaked + is_leaked, repeated + is_repeated
                    self._masks[split][part][row] = keep = not (is_leaked or is_repeated)
                    new |= {prompt} if keep else set()
            seen |= new
        if repeated or leaked:
            log.warning(
                "%s: dropped %d answers to prompts that an earlier artifact has, and %d training answers to prompts "
                "that one of them holds out",
                ", ".join(answers.path.name for answers in self.sets),
                repeated,
                leaked,
            )


def proportional_order(groups: Sequence[object]) -> np.ndarray:
    """Returns an order of rows in which any prefix has about the same mix of groups as all rows; stable in a group.

    groups: the group of each row.
    """
    totals: dict[object, int] = {}
    numbers = []
    for group in groups:
        numbers.append(totals.get(group, 0))
        totals[group] = numbers[-1] + 1
    positions = [(number + 0.5) / totals[group] for number, group in zip(numbers, groups, strict=True)]
    return np.argsort(np.array(positions), kind="stable")
