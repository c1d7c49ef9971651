"""Objectives of distillation: how far a drafter's distribution is from the target's, with gradients by the logits.

p is the target's distribution, q = softmax(z) the drafter's, both over the draft vocabulary; alpha = sum min(p, q) is
the acceptance rate of speculative sampling, and TV = 1 - alpha.

    cross_entropy  -sum p log q, as in EAGLE-3 (arXiv 2503.01840); its gradient is that of KL(p, q)
    reverse_kl     KL(q, p) = sum q log(q / p); prefers tokens that the target accepts over covering all of its tokens
    tv             1 - alpha, as in DistillSpec (arXiv 2310.08461); gradients vanish where alpha is small
    lk_alpha       -log alpha, whose gradient is that of TV divided by alpha
    lk_lambda      lambda KL(p, q) + (1 - lambda) TV with lambda = exp(-eta alpha), a constant for the gradient

The last two are the LK losses of arXiv 2602.23881, whose EAGLE-3 heads were trained with eta = 3.  Here lambda follows
from alpha at its own position, not from a mean over the batch, so that a loss depends neither on chunks nor on ranks.
With a reduced draft vocabulary p is renormalised, so alpha does not count what the vocabulary leaves out.
Axes: C rows, W draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST = torch.finfo(torch.float32).tiny  # of a probability whose logarithm is taken


@dataclass(frozen=True)
class Objective:
    """A value of trainer.loss, with its constant."""

    name: str = "cross_entropy"
    eta: float = 3.0  # of lk_lambda

    def __call__(self, p: Tensor, logits: Tensor, gradient: bool) -> tuple[Tensor, Tensor | None]:
        """The loss of each row, [C], and its gradient by the logits, [C, W]; overwrites the logits.

        p, logits: [C, W], float32.  gradient: whether it is needed; if not, it may be None.
        """
        lse = logits.logsumexp(dim=-1)
        if self.name == "cross_entropy":
            loss = lse - torch.linalg.vecdot(p, logits)
            return loss, logits.sub_(lse[:, None]).exp_().sub_(p) if gradient else None
        log_q = logits.sub_(lse[:, None])
        q = log_q.exp()
        if self.name == "reverse_kl":
            ratio = log_q.sub_(p.clamp(min=SMALLEST).log_())
            loss = torch.linalg.vecdot(q, ratio)
            return loss, q.mul_(ratio.sub_(loss[:, None]))
        alpha = torch.minimum(p, q).sum(dim=-1).clamp_(min=SMALLEST)
        raised = q.masked_fill(q >= p, 0.0)  # tokens whose probability should rise
        tv_gradient = (q * raised.sum(dim=-1, keepdim=True)).sub_(raised)
        if self.name == "tv":
            return 1 - alpha, tv_gradient
        if self.name == "lk_alpha":
            return -alpha.log(), tv_gradient.div_(alpha[:, None])
        share = torch.exp(-self.eta * alpha)
        kl = torch.linalg.vecdot(p, p.clamp(min=SMALLEST).log_().sub_(log_q))
        loss = share * kl + (1 - share) * (1 - alpha)
        return loss, tv_gradient.mul_(1 - share[:, None]).add_(q.sub_(p).mul_(share[:, None]))


CROSS_ENTROPY = Objective()
