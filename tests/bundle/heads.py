"""What the tests of published heads ask of a head: its refusal, its notes, the weights of its drafter."""

from __future__ import annotations

import pytest
import torch

from drafterforge.errors import ArtifactError
from drafterforge.interop.published_heads import read_head

LAYER = "transformer_layer_config"


def refusal(folder, facts, **typed) -> str:
    with pytest.raises(ArtifactError) as caught:
        read_head(folder, facts, **typed)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    return str(caught.value)


def equal_weights(drafter, expected) -> bool:
    return all(torch.equal(drafter.state_dict()[key], tensor) for key, tensor in expected.state_dict().items())


def notes(folder, facts, **typed) -> str:
    return "\n".join(read_head(folder, facts, **typed).notes)
