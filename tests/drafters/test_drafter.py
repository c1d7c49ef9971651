"""The fused drafter equals the module, a warm start copies the target's last layer, and counts give the vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from drafterforge.config.target import TargetConfig
from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.init import TargetWeights, init_feature_norms, scratch_init, warm_init
from drafterforge.drafters.eagle3.model import Eagle3Drafter
from drafterforge.drafters.eagle3.spec import DrafterSpec
from drafterforge.drafters.eagle3.vocab import coverage, draft_token_ids
from drafterforge.errors import ArtifactError
from drafterforge.targets.load import load_target
from tests.models import FAMILIES, NORMS, tiny_drafter, tiny_target, uneven
from tests.tiny import save_tiny_target


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Plain causal attention whose queries are the last positions."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    allowed = torch.ones(k.shape[0], k.shape[0]).tril()[-q.shape[0] :].bool()
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~allowed, -torch.inf).softmax(-1), v)


@pytest.mark.parametrize("rows", [None, slice(8, 11), slice(10, 11)])
@pytest.mark.parametrize(
    ("family", "norms"),
    [
        *((family, {}) for family in FAMILIES),
        *(("llama", norms) for norms in ({"norm_before_residual": True}, *NORMS.values()) if norms),
    ],
)
def test_the_fused_drafter_equals_the_module(family, norms, rows):
    target = tiny_target(family)
    module = uneven(tiny_drafter(target, **norms))
    fused = FusedDrafter(module, target.backbone.embedding)
    tokens, features, positions = torch.randint(0, 61, (11,)), torch.randn(11, 96), torch.arange(11) + 5
    with torch.no_grad():
        hidden = module.fuse(features)
        row_indices = None if rows is None else torch.arange(11)[rows]
        expected = module.layer(
            module.embed(tokens), hidden, module.rotary(positions, torch.float32), causal, row_indices
        )
        output = fused.layer(fused.embed(tokens), fused.fuse(features), positions, causal, rows)
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(fused.logits(output), module.logits(expected), rtol=1e-4, atol=1e-5)
    assert torch.equal(fused.token_ids, module.token_ids)


@pytest.mark.parametrize("before", [False, True])
def test_the_residual_is_the_feature_before_or_after_its_norm(target, before):
    drafter = tiny_drafter(target, norm_before_residual=before)
    layer = drafter.midlayer
    layer.hidden_norm.weight.data.add_(0.3 * torch.randn(32))
    embeddings, hidden = torch.randn(6, 32), torch.randn(6, 32)
    rope = drafter.rotary(torch.arange(6), torch.float32)
    seen = []

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen.append(causal(q, k, v))
        return seen[0]

    with torch.no_grad():
        output = layer(embeddings, hidden, rope, attend)
        # as speculators writes it: residual = hidden; hidden = norm(hidden); residual = hidden if norm_before_residual
        residual = hidden
        hidden = hidden * (hidden.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * layer.hidden_norm.weight
        if before:
            residual = hidden
        expected = residual + layer.self_attn.o_proj(seen[0].flatten(1))
        expected = expected + layer.mlp(layer.post_attention_layernorm(expected))
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


def plain_norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * gain


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS)
def test_the_norms_of_eagle_3_1_are_applied_as_in_servers(target, norms):
    drafter = uneven(tiny_drafter(target, **norms))
    features, embeddings = 5 * torch.randn(6, 96), torch.randn(6, 32)
    rope = drafter.rotary(torch.arange(6), torch.float32)
    with torch.no_grad():
        # combine_hidden_states: chunks of the features are normed one by one, concatenated and projected
        parts = list(features.chunk(3, dim=-1))
        if norms.get("fc_norm"):
            parts = [plain_norm(part, norm.weight) for part, norm in zip(parts, drafter.fc_norm, strict=True)]
        hidden = torch.cat(parts, dim=-1) @ drafter.fc.weight.T
        torch.testing.assert_close(drafter.fuse(features), hidden, rtol=1e-5, atol=1e-5)
        # forward: the head reads the normed output; the next step reads the other one, or the same with norm_output
        before = drafter.midlayer(embeddings, hidden, rope, causal)
        after = plain_norm(before, drafter.norm.weight)
        out = drafter.layer(embeddings, hidden, rope, causal)
        torch.testing.assert_close(out, after if norms.get("norm_output") else before, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(drafter.logits(out), after @ drafter.lm_head.weight.T, rtol=1e-4, atol=1e-4)


def test_a_drafter_without_the_norms_has_no_further_tensors(target):
    plain, most = ({*tiny_drafter(target, **norms).state_dict()} for norms in ({}, NORMS["EAGLE-3.1"]))
    assert most - plain == {f"fc_norm.{number}.weight" for number in range(3)} and plain < most


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS)
def test_the_fused_drafter_runs_in_the_targets_dtype(target, norms):
    module = tiny_drafter(target, **norms)
    half = FusedDrafter(module, target.backbone.embedding.bfloat16())
    tokens, features, positions = torch.randint(0, 61, (5,)), torch.randn(5, 96), torch.arange(5)
    with torch.no_grad():
        out = half.logits(half.layer(half.embed(tokens), half.fuse(features.bfloat16()), positions, causal))
        full = FusedDrafter(module, target.backbone.embedding)
        expected = full.logits(full.layer(full.embed(tokens), full.fuse(features), positions, causal))
    assert out.dtype == torch.bfloat16
    assert F.cosine_similarity(out.float(), expected, dim=-1).min() > 0.99


def test_the_embedding_is_shared_and_never_trained_or_saved(target, drafter):
    assert "embedding" not in drafter.state_dict()
    assert "embedding" not in dict(drafter.named_parameters())
    module = Eagle3Drafter(drafter.spec, target.backbone.embedding)
    assert module.embedding.data_ptr() == target.backbone.embedding.data_ptr()


# Vocabulary.


def test_the_vocabulary_is_the_most_frequent_ids_ties_to_the_lowest():
    counts = np.array([0, 5, 2, 2, 0, 2, 9])
    assert draft_token_ids(counts, 3).tolist() == [1, 2, 6]
    assert draft_token_ids(counts, 4).tolist() == [1, 2, 3, 6]
    assert draft_token_ids(counts, 6).tolist() == [0, 1, 2, 3, 5, 6]  # filled up from the lowest
    assert draft_token_ids(counts, 99).tolist() == list(range(7))


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=40), size=st.integers(1, 45))
def test_the_vocabulary_equals_a_plain_sort(counts, size):
    order = sorted(range(len(counts)), key=lambda i: (-counts[i], i))
    ids = draft_token_ids(np.array(counts), size)
    assert ids.tolist() == sorted(order[:size]) and ids.dtype == torch.int64


def test_coverage_is_the_share_of_counted_tokens():
    counts = np.array([4, 0, 5, 1])
    assert coverage(counts, torch.tensor([0, 2])) == 0.9
    assert coverage(np.zeros(4), torch.tensor([0])) == 0.0


def test_setting_the_vocabulary_writes_both_maps(drafter):
    ids = torch.tensor([*range(3, 42), 60])
    drafter.set_vocabulary(ids)
    assert torch.equal(drafter.token_ids, ids) and torch.equal(drafter.t2d.nonzero()[:, 0], ids)


# Initial weights.


@pytest.fixture(scope="module", params=[False, True], ids=["own head", "tied head"])
def folder(request, tmp_path_factory):
    return save_tiny_target(tmp_path_factory.mktemp("target") / "tiny", tie_word_embeddings=request.param)


def warm(folder) -> tuple[Eagle3Drafter, dict, torch.Tensor]:
    target = load_target(TargetConfig(source="hf", model=str(folder), dtype="float32"))
    spec = DrafterSpec.for_target(target.config, target.backbone.taps, 30)
    drafter = Eagle3Drafter(spec, target.backbone.embedding)
    drafter.set_vocabulary(torch.arange(30) * 5)
    torch.manual_seed(0)
    warm_init(drafter, TargetWeights(folder), target.config.num_hidden_layers)
    return drafter, load_file(folder / "model.safetensors"), target.head_weight


def test_a_warm_start_copies_the_last_layer_and_the_heads_rows(folder):
    drafter, weights, head = warm(folder)
    last = {
        name.removeprefix("model.layers.6."): w for name, w in weights.items() if name.startswith("model.layers.6.")
    }
    layer = drafter.midlayer
    for name in ("q_proj", "k_proj", "v_proj"):
        assert torch.equal(getattr(layer.self_attn, name).weight[:, 32:], last[f"self_attn.{name}.weight"])
    assert torch.equal(layer.self_attn.o_proj.weight, last["self_attn.o_proj.weight"])
    for name in ("gate_proj", "up_proj", "down_proj"):
        assert torch.equal(getattr(layer.mlp, name).weight, last[f"mlp.{name}.weight"])
    assert torch.equal(layer.hidden_norm.weight, last["input_layernorm.weight"])
    assert torch.equal(layer.post_attention_layernorm.weight, last["post_attention_layernorm.weight"])
    assert torch.equal(drafter.norm.weight, weights["model.norm.weight"])
    assert torch.equal(drafter.lm_head.weight, head[torch.arange(30) * 5])


def test_a_warm_start_passes_the_high_feature_on(folder):
    drafter, _, _ = warm(folder)
    low, middle, high = torch.randn(3, 7, 32)
    fused = drafter.fuse(torch.cat((low, middle, high), dim=-1))
    assert F.cosine_similarity(fused, high, dim=-1).min() > 0.99


def test_initial_norms_keep_the_scale_of_each_feature(target):
    drafter = tiny_drafter(target, fc_norm=True)
    features = torch.randn(64, 3, 32) * torch.tensor([0.5, 4.0, 60.0])[:, None] * (0.8 + 0.4 * torch.rand(64, 3, 1))
    features[0] *= 1000  # the first token of a text has such features
    init_feature_norms(drafter, features.flatten(1))
    for number, part in enumerate(features.transpose(0, 1)[:, 1:]):
        drafter.fc.weight.data.copy_(torch.eye(96)[32 * number : 32 * number + 32])
        handed = drafter.fuse(features[1:].flatten(1))
        assert (handed.norm(dim=-1).median() / part.norm(dim=-1).median() - 1).abs() < 0.05
        assert F.cosine_similarity(handed, part, dim=-1).min() > 0.999


def test_a_warm_start_is_a_function_of_the_seed(folder):
    first, second = warm(folder)[0].state_dict(), warm(folder)[0].state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_warm_start_from_a_model_with_other_names_says_what_to_type(folder, drafter):
    with pytest.raises(ArtifactError, match=r"has no tensor 'model\.layers\.9\..*type drafter\.init=scratch"):
        warm_init(drafter, TargetWeights(folder), 10)


def test_a_scratch_start_has_unit_gains(drafter):
    scratch_init(drafter, std=0.02)
    for name, parameter in drafter.named_parameters():
        if parameter.dim() == 1:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            assert 0.015 < parameter.std() < 0.025, name
