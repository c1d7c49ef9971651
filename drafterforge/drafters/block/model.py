"""The block drafter (DFlash, arXiv 2602.06036): one pass over the root and mask tokens drafts a block.

Position p of a text is context: the target's features there, projected and normed, give each layer keys and values.
Queries are the tokens of a block, the root at position P and mask tokens after it; each reads the context before the
root and all tokens of its block.  The mask token at P + i proposes the token there.
A Markov head (DSpark) adds to its logits a score of the pair with the token before.  A confidence head (DSpark)
predicts at each position how much of the target's distribution the drafter's covers, sum min(p, q).
Axes: N positions or tokens, H hidden, T taps of the target, D head width, W draft vocabulary, r Markov rank.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from drafterforge.drafters.block.spec import BlockSpec
from drafterforge.drafters.eagle3.model import Eagle3Drafter, GatedMLP, RMSNorm
from drafterforge.kernels.rope import RopeTable, apply_rope

Rotary = tuple[Tensor, Tensor]
# attend(layer, q [N, heads, D], k, v [N, key heads, D]) returns [N, heads, D]
AttendBlock = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class BlockAttention(nn.Module):
    """Projections of a layer's attention, with a norm of every query and key head."""

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__()
        self.spec = spec
        queries, keys = spec.num_heads * spec.head_dim, spec.num_key_heads * spec.head_dim
        self.q_proj = nn.Linear(spec.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(spec.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(spec.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, spec.hidden_size, bias=False)
        self.q_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps)
        self.k_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps)

    def queries(self, x: Tensor, rope: Rotary) -> Tensor:
        """[N, heads, D] of x [N, H]."""
        return apply_rope(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.spec.head_dim))), *rope)

    def keys(self, x: Tensor, rope: Rotary) -> tuple[Tensor, Tensor]:
        """Keys and values [N, key heads, D] of x [N, H]."""
        k, v = (project(x).unflatten(-1, (-1, self.spec.head_dim)) for project in (self.k_proj, self.v_proj))
        return apply_rope(self.k_norm(k), *rope), v


class BlockLayer(nn.Module):
    """A decoder layer; its parameter names are those of published checkpoints."""

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.self_attn = BlockAttention(spec)
        self.mlp = GatedMLP(spec)

    def forward(self, hidden: Tensor, rope: Rotary, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """Outputs [N, H] of block tokens [N, H]."""
        x = self.input_layernorm(hidden)
        attention = self.self_attn
        mixed = attend(attention.queries(x, rope), *attention.keys(x, rope))
        hidden = hidden + attention.o_proj(mixed.flatten(1))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class MarkovHead(nn.Module):
    """Low-rank scores of pairs of neighbouring tokens: the first of the target's vocabulary, the second drafted."""

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(spec.vocab_size, spec.markov_rank)
        self.markov_w2 = nn.Linear(spec.markov_rank, spec.draft_vocab_size, bias=False)


class ConfidenceHead(nn.Module):
    """The logit of a position's confidence, from its output and the Markov head's state of the token before."""

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__()
        self.proj = nn.Linear(spec.hidden_size + spec.markov_rank, 1)
        nn.init.zeros_(self.proj.bias)


class BlockDrafter(nn.Module):
    """Feature fusion, decoder layers, norm and head over the draft vocabulary."""

    def __init__(self, spec: BlockSpec, embedding: Tensor) -> None:
        """embedding: the target's, [V, H]; shared, never trained or saved."""
        super().__init__()
        self.spec = spec
        self.fc = nn.Linear(len(spec.tap_layers) * spec.target_hidden_size, spec.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.layers = nn.ModuleList(BlockLayer(spec) for _ in range(spec.num_layers))
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.lm_head = nn.Linear(spec.hidden_size, spec.draft_vocab_size, bias=False)
        if spec.markov_rank:
            self.markov_head = MarkovHead(spec)
        if spec.confidence:
            self.confidence_head = ConfidenceHead(spec)
        self.register_buffer("d2t", torch.zeros(spec.draft_vocab_size, dtype=torch.long))  # target id = draft id + d2t
        self.register_buffer("t2d", torch.zeros(spec.vocab_size, dtype=torch.bool))  # whether a target id is drafted
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.rope = RopeTable(*spec.rotary())

    set_vocabulary = Eagle3Drafter.set_vocabulary
    token_ids = Eagle3Drafter.token_ids
    embed = Eagle3Drafter.embed
    rotary = Eagle3Drafter.rotary

    def context(self, features: Tensor) -> Tensor:
        """What keys and values of positions are made from, [N, H], of features [N, TH]."""
        return self.hidden_norm(self.fc(features.to(self.fc.weight.dtype)))

    def block_tokens(self, roots: Tensor) -> Tensor:
        """Blocks [N, block_size] that begin with roots [N]."""
        masks = torch.full((len(roots), self.spec.num_drafted), self.spec.mask_token_id, device=roots.device)
        return torch.cat((roots[:, None], masks), dim=1)

    def forward(self, tokens: Tensor, positions: Tensor, dtype: torch.dtype, attend: AttendBlock) -> Tensor:
        """Normed outputs [N, H] of block tokens [N] at positions [N].  dtype: of the context."""
        hidden, rope = self.embed(tokens).to(dtype), self.rotary(positions, dtype)
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, rope, lambda q, k, v, number=number: attend(number, q, k, v))
        return self.norm(hidden)

    def pairs(self, tokens: Tensor) -> Tensor:
        """What the Markov head adds to the states of mask tokens after tokens [...], [..., r]."""
        return self.markov_head.markov_w1(tokens)
