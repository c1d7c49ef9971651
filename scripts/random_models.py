"""Targets and EAGLE-3 drafters of real sizes with random weights; drafted tokens are accepted at a known rate.

The weights alone decide what is accepted, so that the runtime needs no hook: the same numbers come out with CUDA graphs
or without, for one drafter or a stacked pool, and no step waits for the host.

- The target continues token t with `successors()[t]`, one cycle through the draft vocabulary in random order. Its
  embedding outweighs what the layers add, and row `successors()[t]` of its head is the embedding of t. Margins are so
  large that rounding never changes a token: any answer can be checked.
- The drafter's queries and keys are constant but for the rotary position, so that a slot attends to itself. Its output
  is then a function of the slot's token t, which its head maps to the successor of t, or, for a share 1 - rate of the
  tokens, to a wrong one. A chain or the best path of a tree is thus accepted level by level with probability `rate`.

Everything else is random noise of the usual size: every pass reads and multiplies all weights.
Axes: V target vocabulary, W draft vocabulary, H hidden, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from drafterforge.config.drafter import LORA_TARGETS
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.init import scratch_init
from drafterforge.drafters.eagle3.lora import LowRank
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.targets.device import widens
from drafterforge.targets.load import Target, wrap_model

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig, Qwen3Config, Qwen3ForCausalLM

FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
SIZES = {
    "llama3.1-8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "qwen3-32b": {
        "family": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "smollm2-135m": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "tiny-qwen3": {
        "family": "qwen3",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
}
NOISE = 0.02  # standard deviation of ordinary weights
SIGNAL = 100.0  # standard deviation of the embedding; the layers add a few units
CONSTANT = 0.5  # first entry of every embedding over SIGNAL * sqrt(H)
OWN_SLOT = 16.0  # by how much a slot's score of itself exceeds that of its neighbour, in nats
PEAK = 20.0  # draft logit of the drafted token, when those of other tokens are around zero
RANK = 16  # of LoRA experts
CHUNK = 4096  # tokens whose outputs are computed at once


def draft_vocabulary(target: Target, vocab: int) -> int:
    """Size of the draft vocabulary, W: at most the target's."""
    return min(vocab, target.config.vocab_size)


def successors(vocab: int) -> Tensor:
    """The token that follows each token of the draft vocabulary, [W]: one cycle in random order."""
    order = torch.randperm(vocab, generator=torch.Generator().manual_seed(1))
    following = torch.empty_like(order)
    following[order] = order.roll(-1)
    return following


def continuation(token: int, count: int, vocab: int) -> list[int]:
    """The `count` tokens with which the target continues a text that ends in `token`."""
    following, tokens = successors(vocab).tolist(), [token]
    for _ in range(count):
        tokens.append(following[tokens[-1]])
    return tokens[1:]


def random_prompt(vocab: int, length: int, seed: int) -> list[int]:
    """Token ids of the draft vocabulary."""
    return torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


class Decoder:
    """The parts of a decoder that `LeanBackbone` reads."""

    def __init__(self, model: nn.Module, layers: Iterator[nn.Module]) -> None:
        self.embed_tokens, self.norm, self.rotary_emb = model.embed_tokens, model.norm, model.rotary_emb
        self.layers = layers


@dataclass
class StreamedModel:
    """A model whose layers are created on the device when they are read, so that no layer is in memory twice."""

    config: PretrainedConfig
    model: Decoder
    head: nn.Linear
    device: torch.device
    dtype: torch.dtype
    generation_config: None = None

    def get_output_embeddings(self) -> nn.Linear:
        return self.head


@contextlib.contextmanager
def created_on(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Parameters that are created inside are on this device and in this dtype."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(default)


@torch.no_grad()
def random_target(size: str, device: torch.device, dtype: torch.dtype, vocab: int = 32000) -> Target:
    """A target of that size, created layer by layer on the device in its dtype.  vocab: draft vocabulary."""
    settings = dict(SIZES[size])
    config_class, model_class = FAMILIES[settings.pop("family", "llama")]
    settings |= {"max_position_embeddings": 8192, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = config_class(**settings, tie_word_embeddings=False)
    wide = widens(dtype, device)
    with created_on(device, dtype):
        first = model_class(config_class(**settings | {"num_hidden_layers": 1}, tie_word_embeddings=False)).eval()
    embedding, head, template = first.model.embed_tokens.weight, first.lm_head.weight, first.model.layers[0]
    length = SIGNAL * config.hidden_size**0.5
    for rows in embedding.split(CHUNK):  # of equal size, so that the norm keeps the constant entry constant
        noise = torch.randn(rows.shape, device=device)
        noise[:, 0] = 0.0
        rows.copy_(F.normalize(noise, dim=1) * length)
    embedding[:, 0] = CONSTANT * length
    head.normal_(std=NOISE)
    following = successors(min(vocab, config.vocab_size)).to(device)
    for tokens in torch.arange(following.numel(), device=device).split(CHUNK):
        head[following[tokens]] = embedding[tokens] * (NOISE / SIGNAL)
    head[:, 0] = 0.0  # the constant entry says nothing about a token

    def layers() -> Iterator[nn.Module]:
        for index in range(config.num_hidden_layers):
            with created_on(device, dtype):
                layer = type(template)(config, index).eval()
            for parameter in layer.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=NOISE)
                else:
                    parameter.fill_(1.0)
            yield layer.float() if wide else layer

    if wide:
        first.float()
    weight = first.lm_head.weight
    model = StreamedModel(config, Decoder(first.model, layers()), first.lm_head, weight.device, weight.dtype)
    return wrap_model(model, None, name=size, folder=Path("in memory"), dtype=dtype)


@torch.no_grad()
def rated_drafter(target: Target, vocab: int, rate: float) -> Eagle3Drafter:
    """A drafter whose drafted tokens a `random_target` accepts with probability `rate`, level by level."""
    embedding, config = target.backbone.embedding, target.config
    spec = replace(DrafterSpec.for_target(config, target.backbone.taps, vocab), norm_before_residual=True)
    with created_on(embedding.device, embedding.dtype):
        drafter = Eagle3Drafter(spec, embedding)
    scratch_init(drafter, std=NOISE)
    drafter.set_vocabulary(torch.arange(vocab))
    layer, width = drafter.midlayer, spec.hidden_size
    attention = layer.self_attn
    layer.hidden_norm.weight.fill_(1e-3)  # the feature is read, but hardly counts
    layer.mlp.down_proj.weight.mul_(0.1)
    attention.v_proj.weight.normal_(std=width**-0.5)
    attention.v_proj.weight[:, 0] = 0.0
    attention.o_proj.weight.normal_(std=(spec.num_heads * spec.head_dim) ** -0.5)
    attend_to_itself(drafter)
    tokens = torch.arange(vocab, device=embedding.device)
    outputs = torch.cat([self_outputs(drafter, part) for part in tokens.split(CHUNK)])
    mean = F.normalize(outputs.mean(dim=0), dim=0)
    outputs -= (outputs @ mean)[:, None] * mean  # what outputs have in common says nothing about a token
    sizes = outputs.norm(dim=1, keepdim=True)
    rows = outputs / sizes * (PEAK / sizes.mean())  # of equal size, so that no other row fits an output as well
    drafter.lm_head.weight[drafted_tokens(vocab, rate).to(embedding.device)] = rows.to(embedding.dtype)
    return drafter


def drafted_tokens(vocab: int, rate: float) -> Tensor:
    """What the drafter drafts after each token, [W]: its successor, or for a share 1 - rate another token's."""
    drafted = successors(vocab)
    wrong = (torch.rand(vocab, generator=torch.Generator().manual_seed(2)) >= rate).nonzero()[:, 0]
    drafted[wrong] = drafted[wrong.roll(1)]
    return drafted


def attend_to_itself(drafter: Eagle3Drafter) -> None:
    """Make every slot's attention attend to itself: equal queries and keys, which only positions tell apart."""
    spec, inv_freq = drafter.spec, drafter.rope.inv_freq.cpu()
    half = spec.head_dim // 2
    fast = inv_freq > 0.01  # several frequencies, so that no distance looks like none
    gap = 2 * (1 - inv_freq[fast].cos()).sum() / spec.head_dim**0.5  # between neighbours, of queries and keys of 1
    normed = CONSTANT * spec.hidden_size**0.5 / (1 + CONSTANT**2) ** 0.5  # first entry of a normed embedding
    level = float((OWN_SLOT / gap) ** 0.5 / normed)
    for projection in (drafter.midlayer.self_attn.q_proj, drafter.midlayer.self_attn.k_proj):
        projection.weight.mul_(0.1)
        heads = projection.weight.unflatten(0, (-1, 2, half))  # [heads, 2, D/2, 2H]
        heads[:, :, fast.to(heads.device), 0] = level


def self_outputs(drafter: Eagle3Drafter, tokens: Tensor) -> Tensor:
    """What the head reads of slots that attend to themselves alone, [N, H], float32."""
    spec, embeddings = drafter.spec, drafter.embed(tokens)
    groups = spec.num_heads // spec.num_key_heads
    rope = drafter.rotary(torch.zeros_like(tokens), embeddings.dtype)
    out = drafter.layer(
        embeddings, torch.zeros_like(embeddings), rope, lambda q, k, v: v.repeat_interleave(groups, dim=1)
    )
    return drafter.normed(out).float()


def random_pool(target: Target, vocab: int, count: int, rate: float = 0.0) -> list[FusedDrafter]:
    """A generalist of the target's shape and LoRA experts, which all draft alike."""
    drafter = rated_drafter(target, vocab, rate)
    generalist = FusedDrafter(drafter, target.backbone.embedding)
    modules = {name: m for name, m in drafter.named_modules() if name.split(".")[-1] in LORA_TARGETS}

    def adapter() -> dict[str, LowRank]:
        def random(*shape: int) -> Tensor:
            return 1e-3 * torch.randn(*shape, device=generalist.embedding.device)

        return {name: LowRank(random(RANK, m.in_features), random(m.out_features, RANK)) for name, m in modules.items()}

    return [generalist, *(generalist.with_adapter(adapter()) for _ in range(count - 1))]


def rate_for(mat: float, depth: int) -> float:
    """The rate with which trees of `depth` levels emit `mat` tokens a cycle: 1 + rate + ... + rate ** depth = mat."""
    if not 1.0 <= mat <= depth + 1:
        raise ValueError(f"a tree of {depth} levels emits 1 to {depth + 1} tokens a cycle, got {mat}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**level for level in range(depth + 1)) < mat else (low, middle)
    return (low + high) / 2
