"""Hydra's grammar on the outside, typed frozen dataclasses on the inside; a mistake is one line."""

from drafterforge.compose.load import load_config, to_dict, to_yaml

__all__ = ["load_config", "to_dict", "to_yaml"]
