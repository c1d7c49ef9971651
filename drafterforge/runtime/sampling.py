"""Sampling whose outcome depends on prompt and seed alone: every absolute position has its own noise.

A token is the inverse of the filtered distribution's cumulative sum, in float64 and token-id order, at the noise of its
position.  A drafted token is confirmed if it equals that token (sample and match), so trees, drafters and batching
never change an answer.  Axes: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from drafterforge.config.sampling import require_sampling
from drafterforge.kernels.gpu import upload
from drafterforge.runtime.shapes import next_power

NUMBERS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")  # of a row
NEUTRAL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}  # values with which a filter keeps every token
NUCLEUS_GUESS = 512  # most probable tokens that are tried before a whole row is sorted


@dataclass(frozen=True)
class Sampling:
    """How the token after a text is chosen; the filters act in this order, as in `transformers`."""

    repetition_penalty: float = 1.0  # logits of tokens in the text: divided if positive, else multiplied
    temperature: float = 0.0  # 0: the most probable token
    top_k: int = 0  # keep the k most probable tokens, and ties of the last; 0: all
    top_p: float = 1.0  # keep the fewest most probable tokens with this mass, and ties of the last
    min_p: float = 0.0  # keep tokens with at least this share of the best probability
    seed: int = 0  # of the noise

    def __post_init__(self) -> None:
        """Check ranges."""
        require_sampling(self)

    @property
    def plain(self) -> bool:
        """Whether the token is always the argmax of the target's logits."""
        return self.temperature == 0 and self.repetition_penalty == 1


GREEDY = Sampling()


def noise(seed: int, position: int, count: int, stream: int = 0) -> np.ndarray:
    """Uniform noise in [0, 1) of `count` absolute positions from `position` on, float64: Philox keyed by the seed.

    stream: 0 to 3, which are independent.
    """
    words = np.random.Philox(key=seed, counter=position).random_raw(4 * count)[stream::4]
    return (words >> np.uint64(11)) * 2.0**-53


class Picker:
    """Chooses the next token of every row, each by its own `Sampling`."""

    def __init__(self, rows: Sequence[Sampling], vocab_size: int, device: torch.device) -> None:
        self.rows, self.device, self.vocab_size = list(rows), device, vocab_size
        numbers = [[float(getattr(row, name)) for name in NUMBERS] for row in rows]
        self._read(torch.tensor(numbers, dtype=torch.float64, device=device))
        self.plain = all(row.plain for row in rows)
        self.greedy = all(row.temperature == 0 for row in rows)
        self.penalised = any(row.repetition_penalty != 1 for row in rows)
        self.filters = frozenset(
            name for name, neutral in NEUTRAL.items() if any(getattr(row, name) != neutral for row in rows)
        )
        self.num_best = min(next_power(max(1, *(row.top_k for row in rows))), vocab_size)  # that hold every row's top_k

    def _read(self, numbers: Tensor) -> None:
        """Take the rows' numbers from a tensor, [B, 5], whose values may change later."""
        self.numbers = numbers
        self.temperature, self.top_k, self.top_p, self.min_p, self.penalty = numbers.split(1, dim=1)

    @property
    def steps(self) -> tuple:
        """What decides the operations of a choice; pickers with equal steps differ in their numbers alone."""
        return self.greedy, self.penalised, self.filters, self.num_best

    def reading(self, numbers: Tensor) -> Picker:
        """A picker of the same steps that reads its numbers from a tensor, [B, 5], as they are when it chooses."""
        twin = copy(self)
        twin._read(numbers)
        return twin

    def noise(self, positions: Sequence[int], count: int, stream: int = 0) -> Tensor | None:
        """Noise of `count` positions from each row's position on, [B, count]; None if no row samples."""
        if self.greedy:
            return None
        rows = [noise(row.seed, position, count, stream) for row, position in zip(self.rows, positions, strict=True)]
        uniform = torch.from_numpy(np.stack(rows))
        return upload(uniform, self.device)

    def __call__(self, logits: Tensor, uniform: Tensor | None, seen: Tensor | None) -> Tensor:
        """Tokens [B] from logits [B, V] at noise [B].  seen: tokens that the repetition penalty applies to, [B, V]."""
        logits = self._penalised(logits, seen)
        best = logits.argmax(dim=-1)
        if self.greedy:
            return best
        probs = self._probs(logits, best)
        cumulative = probs.cumsum(dim=-1)
        sampled = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)[:, 0]
        # noise close to 1 may round to the total mass: then the last token with any mass is meant
        last = self.vocab_size - 1 - (probs > 0).flip(-1).long().argmax(dim=-1)
        return torch.where(self.temperature[:, 0] > 0, torch.minimum(sampled, last), best)

    def distribution(self, logits: Tensor, seen: Tensor | None) -> Tensor:
        """Distribution that a token is sampled from, [B, V], float64; one-hot in greedy rows."""
        logits = self._penalised(logits, seen)
        best = logits.argmax(dim=-1)
        one_hot = torch.zeros_like(logits).scatter_(1, best[:, None], 1.0)
        return one_hot if self.greedy else torch.where(self.temperature > 0, self._probs(logits, best), one_hot)

    def distributions(self, logits: Tensor, tokens: Tensor, seen: Tensor | None) -> Tensor:
        """Distributions that the tokens [B, A] of a walk are sampled from, [B, A, V].

        logits: before each token, [B, A, V].  seen: before the first one, see `__call__`.
        """
        steps = []
        for step, token in zip(logits.unbind(1), tokens.unbind(1), strict=True):
            steps.append(self.distribution(step, seen))
            seen = None if seen is None else seen.scatter(1, token[:, None], True)
        return torch.stack(steps, dim=1)

    def _penalised(self, logits: Tensor, seen: Tensor | None) -> Tensor:
        """Logits [B, V] in float64, with the repetition penalty on seen tokens."""
        logits = logits.double()
        if self.penalised:
            logits = torch.where(seen, torch.where(logits < 0, logits * self.penalty, logits / self.penalty), logits)
        return logits

    def _probs(self, logits: Tensor, best: Tensor) -> Tensor:
        """Probabilities [B, V] at each row's temperature, filtered."""
        logits = logits - logits.gather(-1, best[:, None])  # so a temperature close to 0 does not overflow
        logits = logits / torch.where(self.temperature > 0, self.temperature, 1.0)
        return self._filtered(logits).softmax(dim=-1)

    def _filtered(self, logits: Tensor) -> Tensor:
        """Logits [B, V], -inf for filtered tokens."""
        if "top_k" in self.filters:
            values = logits.topk(self.num_best, dim=-1).values
            least = values.gather(-1, (self.top_k.long() - 1).clamp(min=0, max=self.num_best - 1))
            logits = logits.masked_fill((logits < least) & (self.top_k > 0), float("-inf"))
        if "top_p" in self.filters:
            least = self._nucleus(logits)
            logits = logits.masked_fill((logits < least) & (self.top_p < 1), float("-inf"))
        if "min_p" in self.filters:
            least = logits.amax(dim=-1, keepdim=True) + self.min_p.log()
            logits = logits.masked_fill(logits < least, float("-inf"))
        return logits

    def _nucleus(self, logits: Tensor) -> Tensor:
        """The smallest logit inside each row's nucleus, [B, 1]."""
        total = logits.logsumexp(dim=-1, keepdim=True)
        guesses = (NUCLEUS_GUESS, 8 * NUCLEUS_GUESS) if logits.device.type == "cpu" else ()
        for count in sorted({min(guess, self.vocab_size) for guess in (*guesses, self.vocab_size)}):
            # on other devices, checking a guess would wait for the device
            values = logits.topk(count, dim=-1).values
            mass = (values - total).exp().cumsum(dim=-1)
            if count == self.vocab_size or bool(((mass[:, -1:] >= self.top_p) | (self.top_p == 1)).all()):
                break
        inside = (mass < self.top_p).sum(dim=-1, keepdim=True).clamp(max=values.shape[1] - 1)
        return values.gather(-1, inside)
