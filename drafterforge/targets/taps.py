"""The layers whose inputs are the features of EAGLE-3 drafters."""

from __future__ import annotations

from collections.abc import Sequence

from drafterforge.errors import ConfigError


def taps_of(num_layers: int, tapped: bool, taps: Sequence[int] = ()) -> tuple[int, ...]:
    """The tapped layers: `taps`, or `tap_layers` if it is empty.

    tapped: False for a model that only drafts, which needs no features and may have fewer than four layers.
    Raises ConfigError if the model does not have one of the layers.
    """
    if not tapped:
        return ()
    if not taps:
        return tap_layers(num_layers)
    if odd := [layer for layer in taps if not 0 <= layer < num_layers]:
        raise ConfigError(
            f"target.taps={list(taps)} names layer {odd[0]}, but the target has layers 0 to {num_layers - 1}; "
            "leave it out for the default layers"
        )
    return tuple(taps)


def tap_layers(num_layers: int) -> tuple[int, int, int]:
    """Indices of the decoder layers whose inputs are tapped by default, low, mid and high: (2, L // 2, L - 3).

    The tapped state is the residual stream before the norm. Index j means the input of layer j, as in transformers'
    `hidden_states[j]` and in vLLM; SGLang and SpecForge write j - 1. Source: EAGLE-3, arXiv 2503.01840, and its code.
    """
    if num_layers < 4:
        raise ConfigError(f"the target has {num_layers} layers; EAGLE-3 features need at least 4")
    return 2, num_layers // 2, num_layers - 3
