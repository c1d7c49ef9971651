"""Decode the target's answers to many prompts by continuous batching, longest prompts first.

Axes: B rows, T tokens, S cache slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from drafterforge.kernels.attention import additive
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.dispatch import kernels_of
from drafterforge.targets.capture import Capture
from drafterforge.targets.load import Target

PREFILL_TOKENS = 4096  # padded tokens of a prefill pass


@dataclass
class AnswerRow:
    """A row of the batch: a prompt being answered."""

    index: int  # of the prompt
    length: int  # tokens whose keys are stored
    last: int  # token to be fed next
    answer: list[int] = field(default_factory=list)
    done: bool = False  # the row is free for the next prompt
    captured: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # features and states, if captures are kept
    best: list[int] = field(default_factory=list)  # the target's most probable id at the position of each answer token


Keep = Callable[[list[int], int, Capture], None]


class BatchAnswerer:
    """Decodes answers of a target, `batch_size` rows at a time; free rows take the next prompts."""

    def __init__(
        self,
        target: Target,
        batch_size: int,
        temperature: float = 0.0,
        progress: Callable[[int, int], None] | None = None,
        keep: Keep | None = None,
    ) -> None:
        """progress: called with the numbers of new tokens and answers after every pass.

        keep: called with the ids, the number of prompt tokens and the capture of every answer.  A capture equals that
        of a teacher-forced pass where training reads it: it is zero at the last position, whose token was never fed,
        and its argmax is zero inside the prompt.
        """
        self.target, self.batch_size, self.temperature, self.keep = target, batch_size, temperature, keep
        self.progress = progress or (lambda tokens, answers: None)

    @torch.inference_mode()
    def __call__(self, prompts: list[list[int]], max_new_tokens: int, seed: int) -> list[list[int]]:
        """Answers in the order of `prompts`; each ends with its end token unless it reached the limit.

        At temperature > 0, prompt i draws from a random stream keyed by (seed, i), so the batch size does not change
        the answers.
        """
        self.noise = [np.random.Generator(np.random.Philox(key=[seed, i])) for i in range(len(prompts))]
        waiting = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i))
        answers: list[list[int]] = [[] for _ in prompts]
        cache, rows = self.target.new_cache(0), []
        cache.expect_rows(min(self.batch_size, len(prompts)))
        while waiting or rows:
            idle = [i for i, row in enumerate(rows) if row.done]
            room = self.batch_size - len(rows) + len(idle)
            if waiting and room >= max(1, self.batch_size // 8):
                fresh = self._prefill(cache, rows, idle, self._admit(waiting, prompts, room), prompts)
            elif not waiting and 2 * len(idle) >= len(rows):
                rows = self._drop(cache, rows)
                continue
            else:
                self._step(cache, rows)
                fresh = [row for row in rows if not row.done]
            finished = [row for row in fresh if row.last in self.target.eos_ids or len(row.answer) >= max_new_tokens]
            for row in finished:
                row.done = True
                answers[row.index] = row.answer
                if self.keep is not None:
                    self._keep_capture(prompts[row.index], row)
            self.progress(len(fresh), len(finished))
        return answers

    def _keep_capture(self, prompt: list[int], row: AnswerRow) -> None:
        """Pass the capture of a finished row to `keep`."""
        features, states = (F.pad(torch.cat(parts), (0, 0, 0, 1)) for parts in zip(*row.captured, strict=True))
        argmax = torch.tensor([0] * (len(prompt) - 1) + row.best + [0])
        self.keep(prompt + row.answer, len(prompt), Capture(features, states, argmax))
        row.captured = []

    def _capture(self, rows: list[AnswerRow], states: Tensor, features: Tensor) -> None:
        """Store features [B, T, 3H] and states [B, T, H] of the tokens of this pass, in half precision."""
        if self.keep is None:
            return
        half = torch.bfloat16 if features.dtype in (torch.float32, torch.float64) else features.dtype
        features, states = features.to(half), states.to(half)
        for index, row in enumerate(rows):
            if not row.done:
                count = row.length if not row.captured else 1
                row.captured.append((features[index, :count].clone(), states[index, :count].clone()))

    def _drop(self, cache: KeyValueCache, rows: list[AnswerRow]) -> list[AnswerRow]:
        """Shrink the batch to the rows that are not done."""
        active = [i for i, row in enumerate(rows) if not row.done]
        behind = iter(i for i in active if i >= len(active))
        order = [next(behind) if row.done else i for i, row in enumerate(rows[: len(active)])]  # few rows move
        cache.keep_rows(order)
        return [rows[i] for i in order]

    def _admit(self, waiting: list[int], prompts: list[list[int]], room: int) -> list[int]:
        """Remove prompts of similar length from the queue, at most PREFILL_TOKENS tokens with padding."""
        longest = len(prompts[waiting[0]])
        count = max(1, min(room, PREFILL_TOKENS // longest))
        admitted = waiting[:count]
        del waiting[:count]
        return admitted

    def _sample(self, logits: Tensor, rows: list[AnswerRow]) -> Tensor:
        """Next token of each row, [B], from logits [B, V] by inverse CDF."""
        cdf = torch.softmax(logits.double() / self.temperature, dim=-1).cumsum(dim=-1)
        noise = torch.tensor(
            [self.noise[row.index].random() for row in rows],
            dtype=torch.float64,
            device=logits.device,
        )
        tokens = torch.searchsorted(cdf, noise[:, None] * cdf[:, -1:], right=True)[:, 0]
        return tokens.clamp_(max=logits.shape[-1] - 1)

    def _append_tokens(self, logits: Tensor, rows: list[AnswerRow]) -> None:
        """Choose the next token of each row from logits [B, V]; reads the device once."""
        best = kernels_of(logits).argmax(logits)
        tokens = best if self.temperature == 0.0 else self._sample(logits, rows)
        for row, token, best_token in zip(rows, *torch.stack((tokens, best)).tolist(), strict=True):
            if not row.done:
                row.last = token
                row.answer.append(token)
                row.best.append(best_token)

    def _prefill(
        self,
        cache: KeyValueCache,
        rows: list[AnswerRow],
        idle: list[int],
        admitted: list[int],
        prompts: list[list[int]],
    ) -> list[AnswerRow]:
        """Read the admitted prompts into idle and new rows, which are returned."""
        device = self.target.device
        lengths = [len(prompts[i]) for i in admitted]
        longest = max(lengths)
        padded = torch.zeros(len(admitted), longest, dtype=torch.long)
        for row, i in enumerate(admitted):
            padded[row, : lengths[row]] = torch.tensor(prompts[i])
        fresh = self.target.new_cache(len(admitted))
        fresh.set_slots(0, longest)
        positions = torch.arange(longest, device=device).expand(len(admitted), -1)
        states, features = self.target.forward(padded.to(device), positions, fresh)
        ends = torch.tensor(lengths, device=device) - 1
        last = states[torch.arange(len(admitted), device=device), ends]
        new = [AnswerRow(index=i, length=length, last=-1) for i, length in zip(admitted, lengths, strict=True)]
        self._append_tokens(self.target.logits(last), new)
        self._capture(new, states, features)
        idle = idle[: len(new)]
        for index, row in zip(idle, new, strict=False):
            rows[index] = row
        rows.extend(new[len(idle) :])
        cache.put_rows(fresh, idle)
        return new

    def _step(self, cache: KeyValueCache, rows: list[AnswerRow]) -> None:
        """Decode one token for every row."""
        device = self.target.device
        tokens = torch.tensor([[row.last] for row in rows], device=device)
        lengths = torch.tensor([[row.length] for row in rows], device=device)
        used = max(row.length for row in rows) + 1
        cache.set_ragged_slots(lengths, used)
        allowed = torch.arange(used, device=device)[None, None] <= lengths[:, :, None]
        states, features = self.target.forward(tokens, lengths, cache, additive(allowed, self.target.compute_dtype))
        self._capture(rows, states, features)
        for row in rows:
            row.length += not row.done
        self._append_tokens(self.target.logits(states[:, 0]), rows)
