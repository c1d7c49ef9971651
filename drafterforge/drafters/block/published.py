"""Reads published block drafters, DFlash's and DSpark's: from the layouts of vLLM, SGLang and speculators; strict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig

from drafterforge.drafters.block.model import BlockDrafter
from drafterforge.drafters.block.spec import DFLASH, DSPARK, BlockSpec, check_block
from drafterforge.drafters.eagle3.checkpoint import HEAD, check_vocabulary
from drafterforge.drafters.eagle3.spec import ARCHITECTURE, DrafterSpec
from drafterforge.errors import ArtifactError, shorten

CONFIDENCE = "confidence_head.proj.weight"
# settings that change what is drafted, each with the only supported value
SUPPORTED = {
    "attention_bias": False,
    "use_sliding_window": False,
    "sample_from_anchor": False,
    "causal": False,
    "use_swa": False,
    "markov_head_type": "vanilla",
    "hidden_act": "silu",
    "quantization_config": None,
}


def is_published(config: Mapping[str, Any]) -> bool:
    """Whether this is the `config.json` of a block drafter."""
    if "speculators_model_type" in config:
        return config["speculators_model_type"] in ("dflash", "dspark")
    return config.get("architectures") in ([DFLASH], [DSPARK])


def read_published(
    config: Mapping[str, Any], tensors: dict[str, Tensor], target: PretrainedConfig, embedding: Tensor, source: str
) -> BlockDrafter:
    """The drafter with this `config.json` and these tensors; ArtifactError if anything does not fit the target.

    embedding: the target's, [V, H].  source: the folder, in errors.
    """
    try:
        spec = read_spec(config, tensors, target, source)
        check_block(spec, source)
    except (KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{source}: config.json is not that of a block drafter ({shorten(error)})") from None
    if spec.confidence and tensors[CONFIDENCE].shape == (1, spec.hidden_size):  # a head without Markov state
        tensors[CONFIDENCE] = F.pad(tensors[CONFIDENCE], (0, spec.markov_rank))
    stored = tensors.pop("embed_tokens.weight", None)
    if stored is not None and not torch.equal(stored.float(), embedding.to(stored.dtype).float()):
        raise ArtifactError(f"{source} comes with an embedding of its own; drafters share the target's")
    complete(tensors, spec, target, embedding, source)
    with torch.device("meta"):
        expected = BlockDrafter(spec, embedding).state_dict()
    if wrong := sorted(expected.keys() ^ tensors.keys()):
        verb = "lacks" if wrong[0] in expected else "holds unexpected tensors,"
        raise ArtifactError(f"{source} {verb} {shorten(', '.join(wrong), 300)}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise ArtifactError(f"{source}: {name} is {list(tensor.shape)}, wanted {list(expected[name].shape)}")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ArtifactError(f"{source}: {name} holds numbers that are not finite")
    check_vocabulary(tensors["d2t"], tensors["t2d"], source)
    drafter = BlockDrafter(spec, embedding)
    drafter.load_state_dict(tensors)
    return drafter.eval()


def read_spec(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], target: PretrainedConfig, source: str
) -> BlockSpec:
    """The spec; ArtifactError for a setting that drafterforge does not support.

    config: with `rope_parameters` of the layers.
    """
    layer = config.get("transformer_layer_config", config)
    inner = config.get("dflash_config") or {}
    settings = {**layer, **inner, **config}
    if "aux_hidden_state_layer_ids" in config:
        taps = list(config["aux_hidden_state_layer_ids"])
    else:  # named by their output
        taps = [index + 1 for index in settings["target_layer_ids"]]
    is_dspark = config.get("speculators_model_type") == "dspark" or config.get("architectures") == [DSPARK]
    if is_dspark and "sample_from_anchor" not in config and not config.get("dspark_bonus_anchor"):
        raise ArtifactError(
            f"{source}: config.json has neither sample_from_anchor=false nor dspark_bonus_anchor=true; drafters whose "
            "anchor proposes a token, DSpark's default in some programs, are not supported"
        )
    for key, value in SUPPORTED.items():
        if settings.get(key, value) not in (value, None):
            raise ArtifactError(
                f"{source}: config.json has {key}={shorten(settings[key])}, which this version does not support"
            )
    if any(kind != "full_attention" for kind in layer.get("layer_types") or []):
        raise ArtifactError(f"{source} has layers with a sliding window, which this version does not support")
    rows = len(tensors["d2t"]) if "d2t" in tensors else layer["vocab_size"]
    plain = {
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
        **layer,
        "architectures": [ARCHITECTURE],
        "target_hidden_size": config.get("target_hidden_size") or target.hidden_size,
        "draft_vocab_size": rows,
        "rope_parameters": layer["rope_parameters"],
        "eagle_aux_hidden_state_layer_ids": taps,
    }
    return BlockSpec.of(
        DrafterSpec.from_config(plain, source),
        num_layers=layer["num_hidden_layers"],
        block_size=config["block_size"],
        mask_token_id=settings["mask_token_id"],
        markov_rank=config.get("markov_rank") or 0,
        confidence=CONFIDENCE in tensors,
    )


def complete(
    tensors: dict[str, Tensor], spec: BlockSpec, target: PretrainedConfig, embedding: Tensor, source: str
) -> None:
    """Add the head and the vocabulary maps of a drafter that drafts the target's vocabulary with the target's head."""
    if (spec.vocab_size, spec.target_hidden_size) != tuple(embedding.shape):
        raise ArtifactError(
            f"{source} drafts for a target of vocabulary {spec.vocab_size} and width {spec.target_hidden_size}; this "
            f"target has {embedding.shape[0]} and {embedding.shape[1]}"
        )
    if HEAD not in tensors:
        if not target.tie_word_embeddings or spec.draft_vocab_size != spec.vocab_size:
            raise ArtifactError(f"{source} lacks {HEAD}, and the target's head is not its embedding")
        tensors[HEAD] = embedding
    if "d2t" not in tensors:
        tensors["d2t"] = torch.zeros(spec.draft_vocab_size, dtype=torch.long)
    if "t2d" not in tensors:
        ids = (tensors["d2t"].long() + torch.arange(spec.draft_vocab_size)).clamp(0, spec.vocab_size - 1)
        tensors["t2d"] = torch.zeros(spec.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
