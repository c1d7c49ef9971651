"""The training job of a block drafter: initial weights, distillation, saving."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from drafterforge.drafters.base import TrainedDrafter, TrainingJob
from drafterforge.drafters.block.checkpoint import load_block, load_expert
from drafterforge.drafters.block.model import BlockDrafter
from drafterforge.drafters.block.spec import BlockSpec
from drafterforge.drafters.block.train.module import BlockModule
from drafterforge.drafters.eagle3.checkpoint import check_taps
from drafterforge.drafters.eagle3.init import TargetWeights, scratch_init
from drafterforge.drafters.eagle3.lora import ADAPTER
from drafterforge.drafters.eagle3.train.job import freeze_target_head, trained
from drafterforge.drafters.eagle3.train.lora import add_adapter, load_additions
from drafterforge.drafters.eagle3.vocab import draft_token_ids

FIRST_GAIN = 0.3  # of the final norm; after 24 steps on SmolLM2-135M accept 1.13, with 1 1.07, with 0.1 1.09


def train(job: TrainingJob) -> TrainedDrafter:
    drafter, config = start_drafter(job), job.config
    alpha = config.dpace_alpha if config.position_weights == "dpace" else None
    module = BlockModule(drafter, job.target.head_weight, job.trainer, config.num_anchors, job.seed, alpha)
    return trained(job, drafter, job.distil(module))


def start_drafter(job: TrainingJob) -> BlockDrafter:
    """An fp32 drafter to train: with the parent's weights, or new."""
    settings, target, config = job.config, job.target, job.target.config
    embedding = target.backbone.embedding.float()
    if start := job.origin or job.parent:
        check_taps(start.folder, load_block(start.folder, embedding), target)
        if settings.tuning == "full":
            drafter = load_block(start.folder, embedding)
            return freeze_target_head(drafter, target) if settings.head == "target" else drafter
        drafter, additions = load_expert(start.folder, embedding)
        drafter = add_adapter(drafter, settings.lora, job.seed)
        return drafter if additions is None else load_additions(drafter, start.folder / ADAPTER)
    emitted = job.answers.token_counts(config.vocab_size, domain=job.answers_domain)
    token_ids = draft_token_ids(emitted, settings.draft_vocab_size)
    spec = BlockSpec.for_block(
        config,
        target.backbone.taps,
        len(token_ids),
        num_layers=settings.num_layers,
        block_size=settings.block_size,
        mask_token_id=unused_token(emitted, embedding),
        markov_rank=settings.markov_rank,
        confidence=settings.confidence,
    )
    drafter = BlockDrafter(spec, embedding)
    drafter.set_vocabulary(token_ids)
    torch.manual_seed(job.seed)
    if settings.init == "warm":
        warm_init(drafter, TargetWeights(target.folder), config.num_hidden_layers)
    else:
        scratch_init(drafter)
    drafter = drafter.to(target.device)
    return freeze_target_head(drafter, target) if settings.head == "target" else drafter


def unused_token(counts: np.ndarray, embedding: Tensor) -> int:
    """The id to mask with: of the rarest tokens of the answers the highest id with an embedding; lower ids are text.

    counts: occurrences of each id among answer tokens, [V].  embedding: [V, H].
    """
    embedded = (embedding.norm(dim=1) > 0).cpu().numpy()
    rarest = np.flatnonzero(embedded & (counts == counts[embedded].min()))
    return int(rarest[-1])


@torch.no_grad()
def warm_init(drafter: BlockDrafter, weights: TargetWeights, num_layers: int) -> None:
    """Initialise the drafter as the target's last layers.

    fc passes the high feature through, so the context is what the target's last layer reads.  Norms of heads start at
    one; the head is the target's.  The final norm is a part of the target's: mask tokens mean nothing to these layers
    yet, and with its full gain the first proposals are wrong with certainty.  The Markov head starts at zero.
    """
    spec, width = drafter.spec, drafter.spec.hidden_size
    scratch_init(drafter, std=0.01)
    drafter.fc.weight.mul_(0.1)
    drafter.fc.weight[:, -width:] += torch.eye(width)
    first = max(num_layers - spec.num_layers, 0)
    for number, layer in enumerate(drafter.layers):
        prefix = f"model.layers.{min(first + number, num_layers - 1)}."
        for name, parameter in layer.named_parameters():
            if not name.endswith(("q_norm.weight", "k_norm.weight")) or prefix + name in weights:
                parameter.copy_(weights[prefix + name])
    drafter.hidden_norm.weight.copy_(weights[f"model.layers.{num_layers - 1}.input_layernorm.weight"])
    drafter.norm.weight.copy_(weights["model.norm.weight"] * FIRST_GAIN)
    head = "lm_head.weight" if "lm_head.weight" in weights else "model.embed_tokens.weight"
    drafter.lm_head.weight.copy_(weights[head][drafter.token_ids])
    if spec.markov_rank:
        drafter.markov_head.markov_w2.weight.zero_()
