"""Other programs' decoding of the same weights: `generate` of transformers, plain and with prompt lookup."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from drafterforge.errors import ConfigError
from drafterforge.runtime.batch import Cycle, Generation
from drafterforge.runtime.sampling import GREEDY, Sampling
from drafterforge.target.load import Target

LOOKUP_TOKENS = 10  # that prompt lookup drafts, as its documentation suggests


class Transformers:
    """`generate` of transformers on a target's folder, in its dtype, with its end tokens; one prompt at a time."""

    numerics = "fast"

    def __init__(self, model: Any, target: Target, **options: Any) -> None:
        """model: see `open_model`.  options: of `generate`."""
        self.model, self.target, self.options = model, target, options
        self.seen: list[tuple[int, int]] = []  # of each forward pass: tokens known before it, tokens read in it

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampling: Sampling | Sequence[Sampling] = GREEDY,
    ) -> list[Generation]:
        """Greedy answers.  A cycle is a forward pass; what it accepted is told by the cache of the next one."""
        samplings = [sampling] if isinstance(sampling, Sampling) else sampling
        if not all(one.plain for one in samplings):
            raise ConfigError("transformers' sampling draws other noise than ours; measure it greedily")
        return [self._answer(list(prompt), max_new_tokens) for prompt in prompts]

    @torch.inference_mode()
    def _answer(self, prompt: list[int], max_new_tokens: int) -> Generation:
        ids = torch.tensor([prompt], device=self.target.device)
        self.seen.clear()
        noting = self.model.register_forward_pre_hook(self._note, with_kwargs=True)
        try:
            began = self._now()
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=sorted(self.target.eos_ids) or None,
                **self.options,
            )
            seconds = self._now() - began
        finally:
            noting.remove()
        tokens = out[0, len(prompt) :].tolist()
        answer = Generation(prompt, tokens, cycles=self._cycles(len(prompt), len(tokens)))
        answer.time_s |= {"total": seconds}
        return answer

    def _now(self) -> float:
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        return time.perf_counter()

    def _note(self, _: Any, args: tuple, given: dict[str, Any]) -> None:
        ids = given.get("input_ids", args[0] if args else None)
        past = given.get("past_key_values")
        self.seen.append((0 if past is None else int(past.get_seq_length()), int(ids.shape[1])))

    def _cycles(self, prompt_tokens: int, num_tokens: int) -> list[Cycle]:
        """The passes behind the prompt's own, which emits the first token (and whatever was looked up with it)."""
        committed = [past for past, _ in self.seen[1:]] + [prompt_tokens + num_tokens - 1]
        return [
            Cycle(depth=read - 1, num_nodes=read, accept_length=after - before, accepted=after - before - 1)
            for (before, after), (_, read) in zip(pairwise(committed), self.seen[1:], strict=True)
            if after > before
        ]


def open_model(target: Target) -> Any:
    """The target's weights as transformers runs them."""
    return AutoModelForCausalLM.from_pretrained(target.folder, dtype=target.dtype).to(target.device).eval()
