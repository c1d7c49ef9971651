"""The dimensions of an EAGLE-3 drafter, and their `config.json` in the layout that SGLang, vLLM and SafeAILab read.

EAGLE-3.1's two norms are implemented as in the servers: vLLM 0.32.0, vllm/model_executor/models/llama_eagle3.py
(`combine_hidden_states` and `LlamaModel.forward`), and SGLang 0.5.23 at commit 9d18277c,
python/sglang/srt/models/llama_eagle3.py (`LlamaModel.forward`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import LlamaConfig, PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from drafterforge.config.target import MOST_TAPS
from drafterforge.errors import ArtifactError, quote, shorten

ARCHITECTURE = "LlamaForCausalLMEagle3"
LARGEST = 1 << 24  # of any dimension
NORMS_31 = ("fc_norm", "norm_output")  # of EAGLE-3.1
FLAGS = ("norm_before_residual", *NORMS_31)  # default: false
UNSUPPORTED = ("norm_before_fc",)  # one norm over all three features


@dataclass(frozen=True)
class DrafterSpec:
    """Shapes and constants of a drafter."""

    num_taps: ClassVar[int | None] = 3  # layers that it reads; None: any number

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_key_heads: int
    head_dim: int
    vocab_size: int  # of the target
    draft_vocab_size: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any]
    max_positions: int
    tap_layers: tuple[int, ...]
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    norm_before_residual: bool = False  # the residual is the normed feature, as in heads by speculators
    fc_norm: bool = False  # each of the three features has its own RMSNorm before fc
    norm_output: bool = False  # drafted child slots read the layer's output after the final norm, not before it

    @staticmethod
    def for_target(config: PretrainedConfig, taps: tuple[int, ...], draft_vocab_size: int) -> DrafterSpec:
        """A spec with the target's width, heads and rope."""
        rope = dict(getattr(config, "rope_parameters", None) or {"rope_type": "default", "rope_theta": 10000.0})
        if nested := [
            value for value in rope.values() if isinstance(value, dict)
        ]:  # one for each type of layer: Gemma 3
            rope = dict(rope.get("full_attention", nested[0]))
        if rope.get("partial_rotary_factor", 1.0) != 1.0:  # of Phi-4-mini, for example; a drafter's layer has no such
            rope = {"rope_type": "default", "rope_theta": rope.get("rope_theta", 10000.0)}
        return DrafterSpec(
            hidden_size=config.hidden_size,
            target_hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_attention_heads,
            num_key_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocab_size=config.vocab_size,
            draft_vocab_size=min(draft_vocab_size, config.vocab_size),
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters=rope,
            max_positions=config.max_position_embeddings,
            tap_layers=taps,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            pad_token_id=config.pad_token_id,
        )

    def rotary(self) -> tuple[torch.Tensor, float]:
        """Inverse frequencies [D/2] and attention factor, computed by `transformers`."""
        config = LlamaConfig(
            hidden_size=self.num_heads * self.head_dim,
            num_attention_heads=self.num_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.max_positions,
            rope_parameters=dict(self.rope_parameters),
        )
        rotary = LlamaRotaryEmbedding(config)
        return rotary.inv_freq, rotary.attention_scaling

    def to_config(self, dtype: str) -> dict[str, Any]:
        """The `config.json`: all keys explicit, rope in both spellings.

        Layer ids at the top level are in vLLM's convention (input of layer j); those in `eagle_config` are in SGLang's,
        which adds one.
        """
        scaling = {key: value for key, value in self.rope_parameters.items() if key != "rope_theta"}
        plain = scaling.get("rope_type", "default") == "default"
        taps = list(self.tap_layers)
        return {
            "architectures": [ARCHITECTURE],
            "model_type": "llama",
            "hidden_size": self.hidden_size,
            "target_hidden_size": self.target_hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": 1,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_key_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "max_position_embeddings": self.max_positions,
            "rope_theta": self.rope_parameters.get("rope_theta", 10000.0),
            "rope_scaling": None if plain else scaling,
            "rope_parameters": dict(self.rope_parameters),
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            **{flag: getattr(self, flag) for flag in FLAGS},
            "initializer_range": 0.02,
            "use_cache": True,
            "torch_dtype": dtype,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_id,
            "pad_token_id": self.pad_token_id,
            "eagle_aux_hidden_state_layer_ids": taps,
            "eagle_config": {
                "use_aux_hidden_state": True,
                "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in taps],
            },
        }

    @property
    def method(self) -> str:
        """Its name in vLLM and speculators."""
        return "eagle3"

    @property
    def speculators_model(self) -> str:
        """Its class in speculators."""
        return "Eagle3DraftModel"

    @property
    def served_tokens(self) -> int:
        """Drafted tokens per cycle in printed commands, as in most published ones."""
        return 3

    def speculators_keys(self) -> dict[str, Any]:
        """Keys of this kind of drafter in a config of speculators; all explicit, as programs differ in defaults."""
        return {
            "norm_before_residual": self.norm_before_residual,  # the default is true in vLLM, false in speculators
            "norm_before_fc": False,
            "fc_norm": self.fc_norm,
            "norm_output": self.norm_output,
            "embed_requires_grad": False,
            "eagle_aux_hidden_state_layer_ids": list(self.tap_layers),
        }

    @staticmethod
    def from_config(config: dict[str, Any], source: str) -> DrafterSpec:
        """Parse a `config.json`.  source: its name in errors."""
        if not isinstance(config, dict):
            raise ArtifactError(f"{source} is not a JSON object; wanted the config of an EAGLE-3 drafter")
        try:
            architecture = (config.get("architectures") or ["?"])[0]
            if architecture != ARCHITECTURE:
                raise ArtifactError(f"{source} describes a {quote(architecture)}, wanted {ARCHITECTURE!r}")
            if unsupported := [key for key in UNSUPPORTED if config.get(key)]:
                raise ArtifactError(f"{source} sets {', '.join(unsupported)}, which this version does not support")
            if invalid := [key for key in FLAGS if not isinstance(config.get(key, False), bool)]:
                raise ArtifactError(f"{source} has {invalid[0]}={shorten(config[invalid[0]])}, wanted true or false")
            taps = tuple(config["eagle_aux_hidden_state_layer_ids"])
            return DrafterSpec(
                hidden_size=config["hidden_size"],
                target_hidden_size=config["target_hidden_size"],
                intermediate_size=config["intermediate_size"],
                num_heads=config["num_attention_heads"],
                num_key_heads=config["num_key_value_heads"],
                head_dim=config["head_dim"],
                vocab_size=config["vocab_size"],
                draft_vocab_size=config["draft_vocab_size"],
                rms_norm_eps=config["rms_norm_eps"],
                rope_parameters=config["rope_parameters"],
                max_positions=config["max_position_embeddings"],
                tap_layers=taps,
                bos_token_id=config["bos_token_id"],
                eos_token_id=config["eos_token_id"],
                pad_token_id=config["pad_token_id"],
                **{flag: config.get(flag, False) for flag in FLAGS},
            )
        except KeyError as error:
            raise ArtifactError(f"{source} lacks the key {error}; wanted the config of an EAGLE-3 drafter") from None


def check_spec(spec: DrafterSpec, source: str) -> None:
    """Raise ArtifactError on impossible dimensions.  source: their name in errors."""
    sizes = ("hidden_size", "target_hidden_size", "intermediate_size", "num_heads", "num_key_heads", "head_dim")
    for name in (*sizes, "vocab_size", "draft_vocab_size", "max_positions"):
        value = getattr(spec, name)
        if type(value) is not int or not 0 < value <= LARGEST:
            raise ArtifactError(f"{source}: {name} is {shorten(value)}, wanted a number from 1 to {LARGEST}")
    if spec.hidden_size != spec.target_hidden_size:
        raise ArtifactError(
            f"{source}: hidden_size is {spec.hidden_size}, target_hidden_size {spec.target_hidden_size}; wanted the "
            "same number, because the drafter reads the target's embedding"
        )
    if spec.num_heads % spec.num_key_heads or spec.head_dim % 2 or spec.num_heads * spec.head_dim > LARGEST:
        raise ArtifactError(
            f"{source}: {spec.num_heads} heads, {spec.num_key_heads} key heads, head_dim {spec.head_dim}; wanted "
            "heads that are a multiple of key heads, and an even head_dim"
        )
    if type(spec.rms_norm_eps) is not float or not 0 <= spec.rms_norm_eps < 1:
        raise ArtifactError(f"{source}: rms_norm_eps is {shorten(spec.rms_norm_eps)}, wanted a number below 1")
    taps, least, most = spec.tap_layers, spec.num_taps or 1, spec.num_taps or MOST_TAPS
    if not least <= len(taps) <= most or not all(type(layer) is int and 0 <= layer <= LARGEST for layer in taps):
        number = "three" if least == most else f"{least} to {most}"
        raise ArtifactError(f"{source}: eagle_aux_hidden_state_layer_ids is {shorten(taps)}, wanted {number}")
    rope = spec.rope_parameters
    theta = rope.get("rope_theta", 10000.0) if isinstance(rope, dict) else None
    if type(theta) not in (int, float) or not 0 < theta < 1e15:
        raise ArtifactError(f"{source}: rope_parameters is {shorten(rope)}, wanted an object with a rope_theta > 0")
    try:
        frequencies, factor = spec.rotary()
    except Exception as error:  # its type depends on the kind of rope
        raise ArtifactError(f"{source}: rope_parameters {shorten(rope)} cannot be used ({shorten(error)})") from None
    if not torch.isfinite(frequencies).all() or not isinstance(factor, int | float):
        raise ArtifactError(f"{source}: rope_parameters {shorten(rope)} does not give finite frequencies")
