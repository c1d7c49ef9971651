"""The lean and the transformers backbone give the states and features of transformers."""

from __future__ import annotations

import pytest
import torch

from drafterforge.errors import ConfigError
from drafterforge.kernels.attention import additive
from drafterforge.targets.lean import LeanBackbone, lean_obstacle
from drafterforge.targets.modules import ModulesBackbone
from drafterforge.targets.taps import tap_layers
from tests.models import FAMILIES, tiny_model

BACKBONES = {"lean": LeanBackbone, "modules": ModulesBackbone}
CLOSE = {"rtol": 1e-4, "atol": 2e-5}
VARIANTS = {
    "plain": {},
    "one key head": {"num_key_value_heads": 1},
    "no grouping": {"num_key_value_heads": 4},
    "tied head": {"tie_word_embeddings": True},
    "four layers": {"num_hidden_layers": 4},
    "scaled rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
    "llama3 rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


def reference(model, tokens: torch.Tensor, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and features by transformers without our code."""
    with torch.no_grad():
        out = model(tokens, output_hidden_states=True, use_cache=False, **options)
    features = torch.cat([out.hidden_states[i] for i in tap_layers(model.config.num_hidden_layers)], dim=-1)
    return out.logits, features


def positions_of(tokens: torch.Tensor) -> torch.Tensor:
    return torch.arange(tokens.shape[1]).expand(tokens.shape[0], -1)


@pytest.mark.parametrize("backbone", BACKBONES.values(), ids=BACKBONES)
@pytest.mark.parametrize("family", FAMILIES)
def test_teacher_forced_pass_equals_transformers_also_beside_padding(family, backbone):
    model = tiny_model(family)
    ours = backbone(model)
    tokens = torch.randint(3, 61, (2, 23))
    tokens[1, 15:] = 0
    padding = torch.ones_like(tokens)
    padding[1, 15:] = 0
    logits, features = reference(model, tokens, attention_mask=padding)
    states, our_features = ours(tokens, positions_of(tokens), None, None)
    real = padding.bool()
    torch.testing.assert_close(ours.logits(states)[real], logits[real], **CLOSE)
    torch.testing.assert_close(our_features[real], features[real], **CLOSE)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_lean_path_equals_transformers_in_every_variant(variant):
    model = tiny_model(**variant)
    assert lean_obstacle(model.config) is None
    tokens = torch.randint(3, 61, (1, 200))
    logits, features = reference(model, tokens)
    ours = LeanBackbone(model)
    states, our_features = ours(tokens, positions_of(tokens), None, None)
    torch.testing.assert_close(ours.logits(states), logits, **CLOSE)
    torch.testing.assert_close(our_features, features, **CLOSE)


@pytest.mark.parametrize("backbone", BACKBONES.values(), ids=BACKBONES)
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_through_a_cache_equal_one_pass(family, backbone):
    model = tiny_model(family)
    ours = backbone(model)
    tokens = torch.randint(3, 61, (2, 30))
    logits, features = reference(model, tokens)
    cache = ours.new_cache(2)
    first = 0
    for count in (11, 1, 6, 12):
        cache.set_slots(first, count)
        part = tokens[:, first : first + count]
        allowed = torch.arange(first + count)[None] <= torch.arange(first, first + count)[:, None]
        mask = None if first == 0 else additive(allowed, torch.float32)[None]
        states, our_features = ours(part, positions_of(tokens)[:, first : first + count], cache, mask)
        torch.testing.assert_close(ours.logits(states), logits[:, first : first + count], **CLOSE)
        torch.testing.assert_close(our_features, features[:, first : first + count], **CLOSE)
        first += count


@pytest.mark.parametrize("backbone", BACKBONES.values(), ids=BACKBONES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_path_of_a_tree_equals_a_plain_sequence(family, backbone):
    model = tiny_model(family)
    ours = backbone(model)
    text = torch.randint(3, 61, (1, 9))
    parents, levels = [0, 0, 0, 1, 1, 2, 3], [0, 1, 1, 2, 2, 2, 3]
    nodes = torch.randint(3, 61, (1, 7))
    ancestors = torch.eye(7, dtype=torch.bool)
    for node in range(1, 7):
        ancestors[node] |= ancestors[parents[node]]
    cache = ours.new_cache(1)
    cache.set_slots(0, 9)
    ours(text, positions_of(text), cache, None)
    cache.set_slots(9, 7)
    allowed = torch.cat((torch.ones(7, 9, dtype=torch.bool), ancestors), dim=1)
    states, our_features = ours(nodes, 9 + torch.tensor([levels]), cache, additive(allowed, torch.float32)[None])
    for node in range(7):
        path = ancestors[node].nonzero()[:, 0]
        logits, features = reference(model, torch.cat((text, nodes[:, path]), dim=1))
        torch.testing.assert_close(ours.logits(states)[0, node], logits[0, -1], **CLOSE)
        torch.testing.assert_close(our_features[0, node], features[0, -1], **CLOSE)


def test_bfloat16_stays_near_float32():
    exact, half = LeanBackbone(tiny_model()), LeanBackbone(tiny_model(dtype=torch.bfloat16))
    tokens = torch.randint(3, 61, (1, 20))
    expected = exact.logits(exact(tokens, positions_of(tokens), None, None)[0])
    logits = half.logits(half(tokens, positions_of(tokens), None, None)[0])
    assert logits.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(logits.float(), expected, dim=-1).min() > 0.99


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("mistral", {"sliding_window": 64}, "sliding-window"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
            "depends on the sequence length",
        ),
    ],
)
def test_the_lean_path_names_unsupported_settings(family, changes, expected):
    assert expected in lean_obstacle(tiny_model(family, **changes).config)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_lean_path_covers_the_families(family):
    assert lean_obstacle(tiny_model(family).config) is None


def test_another_family_runs_through_transformers_modules():
    from transformers import GemmaConfig, GemmaForCausalLM

    config = GemmaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=5, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=128, initializer_range=0.2,
    )  # fmt: skip
    model = GemmaForCausalLM(config).eval()
    assert "no lean path for model type 'gemma'" in lean_obstacle(config)
    tokens = torch.randint(3, 61, (1, 12))
    logits, features = reference(model, tokens)
    ours = ModulesBackbone(model)
    states, our_features = ours(tokens, positions_of(tokens), None, None)
    torch.testing.assert_close(ours.logits(states), logits, **CLOSE)
    torch.testing.assert_close(our_features, features, **CLOSE)


@pytest.mark.parametrize("backbone", BACKBONES.values(), ids=BACKBONES)
def test_too_few_layers_are_refused(backbone):
    with pytest.raises(ConfigError, match="the target has 3 layers; EAGLE-3 features need at least 4"):
        backbone(tiny_model(num_hidden_layers=3))


@pytest.mark.parametrize(("layers", "taps"), [(30, (2, 15, 27)), (32, (2, 16, 29)), (36, (2, 18, 33)), (4, (2, 2, 1))])
def test_taps_are_those_of_published_drafters(layers, taps):
    assert tap_layers(layers) == taps
