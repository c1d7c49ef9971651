"""How far the tokens of a text are from a target's own choices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from drafterforge.targets.load import Target


@torch.inference_mode()
def logit_gaps(target: Target, ids: Sequence[int], prompt_tokens: int) -> list[float]:
    """For each token after the prompt, by how much its logit is below the largest one; 0 if it is the target's choice.

    Infinite for ids that the target does not have.
    """
    tokens = torch.tensor([list(ids)], device=target.device)
    answer = tokens[0, prompt_tokens:]
    if not len(answer):
        return []
    vocab_size = target.head_weight.shape[0]
    foreign = (tokens[0] < 0) | (tokens[0] >= vocab_size)
    positions = torch.arange(len(ids), device=target.device)[None]
    states, _ = target.forward(tokens.masked_fill(foreign[None], 0), positions, None)
    gaps = []
    rows = states[0, prompt_tokens - 1 : -1]
    for part, answer_ids in zip(rows.split(256), answer.clamp(0, vocab_size - 1).split(256), strict=True):
        logits = target.logits(part).float()  # of a target on several devices, perhaps on another one
        gaps.append((logits.max(dim=-1).values - logits.gather(1, answer_ids[:, None].to(logits.device))[:, 0]).cpu())
    return torch.cat(gaps).masked_fill(foreign[prompt_tokens:].cpu(), float("inf")).tolist()
