"""The three hidden states that EAGLE-3 drafters read."""

from __future__ import annotations

from collections.abc import Sequence

from drafterforge.errors import ConfigError


def taps_of(num_layers: int, tapped: bool, chosen: Sequence[int] = ()) -> tuple[int, ...]:
    """`chosen` if any, else `tap_layers`; none for a model that is not tapped: it drafts, and may have few layers.

    Raises ConfigError where a chosen layer is not there.
    """
    if not tapped:
        return ()
    if not chosen:
        return tap_layers(num_layers)
    if odd := [layer for layer in chosen if not 0 <= layer < num_layers]:
        raise ConfigError(
            f"target.taps={list(chosen)} names layer {odd[0]}, but the target has layers 0 to {num_layers - 1}; "
            "leave it out for the usual ones"
        )
    return tuple(chosen)


def tap_layers(num_layers: int) -> tuple[int, int, int]:
    """Indices of the decoder layers whose input is tapped, low, mid and high: (2, L // 2, L - 3).

    The state is the un-normed residual stream; index j is the input of layer j, which is `hidden_states[j]` in
    transformers and vLLM's convention (SGLang and SpecForge write j - 1).  EAGLE-3, arXiv 2503.01840, and its code.
    """
    if num_layers < 4:
        raise ConfigError(f"the target has {num_layers} layers; EAGLE-3 features need at least 4")
    return 2, num_layers // 2, num_layers - 3
