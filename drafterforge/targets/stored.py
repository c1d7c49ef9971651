"""A stranger's model folder: its config as far as it is plain, and held against the weights before a model is built.

What a config claims costs time and memory as soon as transformers reads it, so the stored tensors, whose bytes are
there, bound every count and width.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig

from drafterforge.artifacts.json_input import read_json
from drafterforge.errors import ArtifactError, quote, shorten

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"  # with one, transformers loads what it names
ALIASES = ("torch_dtype", "rope_scaling", "rope_theta")  # older spellings that transformers still reads
UNSUPPORTED = {"quantization_config": "quantised weights", "per_layer_config": "layers of unlike sizes"}
_LAYERS = re.compile(r"(?!max_).*(layers?|depth)")  # keys that count layers
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")  # in the name of a tensor

Shapes = Mapping[str, tuple[int, ...]]


def read_config(folder: Path) -> PretrainedConfig:
    """The config of the model in `folder`, without what could name code, kernels or other files.

    The fields of the model's own config class are kept, and of what else there is plain numbers alone.  Attention is
    the implementation that transformers chooses by itself, never a kernel that the config names.
    Raises ArtifactError on counts of layers that the stored tensors cannot fill.
    """
    path = folder / CONFIG
    content = read_json(path)
    if not isinstance(content, dict):
        raise ArtifactError(f"{path} is no JSON object; wanted the config of a model")
    if (folder / ADAPTER_CONFIG).exists():
        raise ArtifactError(f"{folder} holds {ADAPTER_CONFIG}, which names another model; wanted whole weights alone")
    for key, what in UNSUPPORTED.items():
        if content.get(key):
            raise ArtifactError(f"{path} has {key}: {what}, which drafterforge does not run")
    shapes = stored_shapes(folder)
    _check_counts(content, shapes, path)
    kind = content.get("model_type")
    if kind == "mistral" and "layer_types" in content:
        kind = "ministral"  # as transformers' AutoConfig has it
    return _class_of(kind, path).from_dict(_plain(content, _class_of(kind, path), path))


def check_sizes(config: PretrainedConfig, folder: Path) -> None:
    """Refuse a config that describes other sizes than those of the tensors in `folder`; nothing is allocated."""
    shapes, path = stored_shapes(folder), folder / CONFIG
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    for name, tensor in model.state_dict().items():
        if name in shapes and shapes[name] != tuple(tensor.shape):
            raise ArtifactError(f"{path} describes {name} as {list(tensor.shape)}, but it is {list(shapes[name])}")
    described, stored = (
        sum(map(math.prod, sizes)) for sizes in ((p.shape for p in model.parameters()), shapes.values())
    )
    if described > 2 * stored:  # single tensors that are missing are named when the weights are read
        raise ArtifactError(
            f"{path} describes a model of {described:,} parameters, but the safetensors files beside it hold "
            f"{stored:,}; wanted the whole weights of the model"
        )


def stored_shapes(folder: Path) -> Shapes:
    """Shapes of all tensors in the safetensors files of a folder, by name; from their headers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return shapes


def _check_counts(content: Mapping[str, Any], shapes: Shapes, path: Path) -> None:
    """Refuse more layers than are stored: config classes make lists, and models modules, as many as these counts."""
    stored = {int(found[1]) for name in shapes if (found := _LAYER.search(name))}
    for key, value in content.items():
        if isinstance(value, dict):
            _check_counts(value, shapes, path)
        elif isinstance(value, int | float) and _LAYERS.fullmatch(key):
            least, most = (1, len(stored) or len(shapes)) if key == "num_hidden_layers" else (-math.inf, len(shapes))
            if not least <= value <= most:
                raise ArtifactError(
                    f"{path} has {shorten(key)}={shorten(value)}, but the safetensors files beside it hold "
                    f"{len(stored)} layers in {len(shapes)} tensors; wanted a config of these weights"
                )


def _plain(content: Mapping[str, Any], kind: type[PretrainedConfig], path: Path) -> dict[str, Any]:
    """The keys of a config that its class declares, and undeclared numbers; configs inside it alike."""
    declared = {field.name for field in fields(kind)} | {*kind.attribute_map, *ALIASES}
    kept = {}
    for key, value in content.items():
        inner = kind.sub_configs_defaults.get(key)
        if inner is not None and isinstance(value, dict):
            own = inner.config_class
            if not issubclass(own, PretrainedConfig):
                own = _class_of(value.get("model_type", inner.model_type), path)
            kept[key] = _plain(value, own, path) | {"model_type": own.model_type}
        elif key in declared or (isinstance(value, int | float) and not key.startswith("_") and not hasattr(kind, key)):
            kept[key] = value
    return kept


def _class_of(kind: object, path: Path) -> type[PretrainedConfig]:
    """The config class of a `model_type`."""
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ArtifactError(f"{path} has model_type {quote(kind)}, which transformers does not know")
    return CONFIG_MAPPING[kind]
