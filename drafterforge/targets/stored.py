"""Check the config of a model folder of unknown origin against its stored tensors before a model is built.

Building a model from a config costs whatever time and memory the config claims, so every count and width in it must
match the tensors in the folder.
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
ADAPTER_CONFIG = "adapter_config.json"  # transformers also loads the model that it names
ALIASES = ("torch_dtype", "rope_scaling", "rope_theta")  # older spellings that transformers still reads
UNSUPPORTED = {"quantization_config": "quantised weights", "per_layer_config": "layers of unlike sizes"}
_LAYERS = re.compile(r"(?!max_).*(layers?|depth)")  # keys that count layers
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")  # the layer's index in the name of a tensor

Shapes = Mapping[str, tuple[int, ...]]
MOST_LAYERS = 1000  # of a config without weights, where a server has them


def read_config(folder: Path) -> PretrainedConfig:
    """The config of the model in `folder`, without keys that could name code, kernels or other files.

    It keeps the fields of the model's config class; of undeclared keys, only numbers.  Transformers chooses the
    implementation of attention itself, never a kernel that the config names.
    Raises ArtifactError if the config counts more layers than are stored, or than any model has.
    """
    path = folder / CONFIG
    content = read_json(path)
    if not isinstance(content, dict):
        raise ArtifactError(f"{path} is not a JSON object; expected the config of a model")
    if (folder / ADAPTER_CONFIG).exists():
        raise ArtifactError(
            f"{folder} holds {ADAPTER_CONFIG}, which names another model; expected a folder with the full weights only"
        )
    for key, feature in UNSUPPORTED.items():
        if content.get(key):
            raise ArtifactError(f"{path} has {key}: {feature} are not supported")
    shapes = stored_shapes(folder)
    _check_counts(content, shapes, path)
    kind = content.get("model_type")
    if kind == "mistral" and "layer_types" in content:
        kind = "ministral"  # the same rule as in transformers' AutoConfig
    return _class_of(kind, path).from_dict(_plain(content, _class_of(kind, path), path))


def check_sizes(config: PretrainedConfig, folder: Path) -> None:
    """ArtifactError if a config describes other sizes than those of the tensors in `folder`; allocates nothing."""
    shapes, path = stored_shapes(folder), folder / CONFIG
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    for name, tensor in model.state_dict().items():
        if name in shapes and shapes[name] != tuple(tensor.shape):
            raise ArtifactError(
                f"{path} describes {name} with shape {list(tensor.shape)}, but its stored shape is {list(shapes[name])}"
            )
    described, stored = (
        sum(map(math.prod, sizes)) for sizes in ((p.shape for p in model.parameters()), shapes.values())
    )
    if described > 2 * stored:  # a few missing tensors are reported by name when the weights are loaded
        raise ArtifactError(
            f"{path} describes a model of {described:,} parameters, but the safetensors files beside it hold "
            f"{stored:,}; expected the complete weights of the model"
        )


def stored_shapes(folder: Path) -> Shapes:
    """Shapes of all tensors in the safetensors files of a folder, by name, read from the headers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return shapes


def _check_counts(content: Mapping[str, Any], shapes: Shapes, path: Path) -> None:
    """ArtifactError for more layers than are stored; config classes and models allocate according to these counts."""
    stored = {int(match[1]) for name in shapes if (match := _LAYER.search(name))}
    num_tensors = len(shapes) or MOST_LAYERS
    for key, value in content.items():
        if isinstance(value, dict):
            _check_counts(value, shapes, path)
        elif isinstance(value, int | float) and _LAYERS.fullmatch(key):
            least, most = (1, len(stored) or num_tensors) if key == "num_hidden_layers" else (-math.inf, num_tensors)
            if not least <= value <= most:
                raise ArtifactError(
                    f"{path} has {shorten(key)}={shorten(value)}, but the safetensors files beside it hold "
                    f"{len(stored)} layers in {len(shapes)} tensors; expected the config of these weights"
                )


def _plain(content: Mapping[str, Any], kind: type[PretrainedConfig], path: Path) -> dict[str, Any]:
    """The keys of a config that its class declares, and undeclared numbers; the same for nested configs."""
    declared = {field.name for field in fields(kind)} | {*kind.attribute_map, *ALIASES}
    safe = {}
    for key, value in content.items():
        inner = getattr(kind, "sub_configs_defaults", kind.sub_configs).get(key)  # transformers 5.19 has classes only
        if inner is not None and isinstance(value, dict):
            inner_kind = getattr(inner, "config_class", inner)
            if not issubclass(inner_kind, PretrainedConfig):
                inner_kind = _class_of(value.get("model_type", getattr(inner, "model_type", None)), path)
            safe[key] = _plain(value, inner_kind, path) | {"model_type": inner_kind.model_type}
        elif key in declared or (isinstance(value, int | float) and not key.startswith("_") and not hasattr(kind, key)):
            safe[key] = value
    return safe


def _class_of(kind: object, path: Path) -> type[PretrainedConfig]:
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ArtifactError(f"{path} has model_type {quote(kind)}, which transformers does not know")
    return CONFIG_MAPPING[kind]
