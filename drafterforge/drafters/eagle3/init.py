"""Initial weights of a drafter: random, or warm from its target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.errors import ArtifactError

VOCABULARY_TENSORS = ("lm_head.weight", "d2t", "t2d")  # tensors that depend on the draft vocabulary


class TargetWeights:
    """Reads single tensors of a Hugging Face folder without loading the model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                self.paths.update(dict.fromkeys(file.keys(), path))

    def __contains__(self, name: str) -> bool:
        return name in self.paths

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.paths:
            raise ArtifactError(
                f"{self.folder} has no tensor {name!r}, which drafter.init=warm needs; type drafter.init=scratch"
            )
        with safe_open(self.paths[name], "pt") as file:
            return file.get_tensor(name).float()


@torch.no_grad()
def scratch_init(drafter: Eagle3Drafter, std: float = 0.02) -> None:
    """Draw normal weights; set gains to 1."""
    for name, parameter in drafter.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=std)
        elif name.endswith("weight"):
            parameter.fill_(1.0)


@torch.no_grad()
def warm_init(drafter: Eagle3Drafter, weights: TargetWeights, num_layers: int) -> None:
    """Initialise the drafter as the target's last layer, applied to the high feature.

    fc passes the high feature through. The layer's feature half, MLP and norms are copied from the target's last layer;
    the embedding half is small and random. The final norm and the lm_head rows are the target's.
    """
    spec = drafter.spec
    scratch_init(drafter, std=0.01)
    if spec.hidden_size != spec.target_hidden_size:
        raise ArtifactError("drafter.init=warm needs a drafter with its target's width; type drafter.init=scratch")
    width = spec.hidden_size
    drafter.fc.weight.mul_(0.1)
    drafter.fc.weight[:, 2 * width :] += torch.eye(width)
    prefix, layer = f"model.layers.{num_layers - 1}.", drafter.midlayer
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(layer.self_attn, name).weight[:, width:] = weights[f"{prefix}self_attn.{name}.weight"]
    layer.self_attn.o_proj.weight.copy_(weights[f"{prefix}self_attn.o_proj.weight"])
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(layer.mlp, name).weight.copy_(weights[f"{prefix}mlp.{name}.weight"])
    layer.hidden_norm.weight.copy_(weights[f"{prefix}input_layernorm.weight"])
    layer.post_attention_layernorm.weight.copy_(weights[f"{prefix}post_attention_layernorm.weight"])
    # Raw embeddings are small: this norm scales them like the feature half.
    layer.input_layernorm.weight.copy_(weights[f"{prefix}input_layernorm.weight"].abs().mean().expand(width))
    drafter.norm.weight.copy_(weights["model.norm.weight"])
    head = "lm_head.weight" if "lm_head.weight" in weights else "model.embed_tokens.weight"
    drafter.lm_head.weight.copy_(weights[head][drafter.token_ids])


def with_vocabulary(drafter: Eagle3Drafter, token_ids: Tensor) -> Eagle3Drafter:
    """A copy of the drafter with another draft vocabulary, token_ids [W] ascending; its head is not initialised."""
    twin = Eagle3Drafter(replace(drafter.spec, draft_vocab_size=len(token_ids)), drafter.embedding)
    twin = twin.to(drafter.fc.weight.device)  # before the weights: on the host they would be read and moved back
    weights = {name: value for name, value in drafter.state_dict().items() if name not in VOCABULARY_TENSORS}
    twin.load_state_dict(weights, strict=False)
    twin.set_vocabulary(token_ids)
    return twin


@torch.no_grad()
def init_feature_norms(drafter: Eagle3Drafter, features: Tensor) -> None:
    """Set the gain of each `fc_norm` to the median RMS of its feature, so fc initially sees features of usual size.

    features: a sample of the target's, [N, 3H].  Without this, the layer's update would dominate the normed feature.
    """
    sizes = features.float().unflatten(-1, (3, -1)).square().mean(-1).sqrt().median(0).values
    for norm, size in zip(drafter.fc_norm, sizes, strict=True):
        norm.weight.fill_(size)
