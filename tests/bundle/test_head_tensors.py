"""Tensors of published heads: fitting ones are read without rounding, and all others are refused by name."""

from __future__ import annotations

import pytest
import torch

from drafterforge.interop.published_heads import read_head
from tests.bundle.builders import edit, edit_tensors
from tests.bundle.heads import notes, refusal

WEIGHTS = ["fc.weight", "norm.weight", "midlayer.hidden_norm.weight", "midlayer.self_attn.q_proj.weight"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_weights_of_other_dtypes_are_read_without_rounding(facts, eagle3, dtype):
    odd = torch.randn(32, 96).to(dtype)
    edit_tensors(eagle3, lambda tensors: tensors.update({"fc.weight": odd}))
    assert torch.equal(read_head(eagle3, facts).drafter.fc.weight, odd.float())


def test_a_head_over_the_whole_vocabulary_needs_no_map(facts, eagle3):
    rows = facts.config.vocab_size
    head = torch.randn(rows, 32).bfloat16()

    def widen(tensors):
        tensors.update({"lm_head.weight": head})
        del tensors["d2t"], tensors["t2d"]

    edit_tensors(eagle3, widen)
    edit(eagle3, draft_vocab_size=None)
    drafter = read_head(eagle3, facts).drafter
    assert torch.equal(drafter.token_ids, torch.arange(rows)) and drafter.t2d.all()
    edit_tensors(eagle3, lambda tensors: tensors.update({"lm_head.weight": head[:-1]}))
    assert f"lacks d2t, and lm_head.weight has {rows - 1} rows" in refusal(eagle3, facts)


def test_the_targets_embedding_is_dropped_and_another_embedding_refused(facts, drafter, eagle3):
    embedding = facts.embedding.bfloat16()
    edit_tensors(eagle3, lambda tensors: tensors.update({"embed_tokens.weight": embedding}))
    assert "embed_tokens.weight equals the target's" in notes(eagle3, facts)
    changed_embedding = embedding.clone()
    changed_embedding[7, 3] += 0.5
    edit_tensors(eagle3, lambda tensors: tensors.update({"embed_tokens.weight": changed_embedding}))
    line = refusal(eagle3, facts)
    assert "comes with an embedding of its own (embed_tokens.weight differs from the target's by up to 0." in line
    edit_tensors(eagle3, lambda tensors: tensors.update({"embed_tokens.weight": embedding[:5]}))
    assert "comes with embed_tokens.weight [5, 32]" in refusal(eagle3, facts)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_a_missing_or_misshapen_tensor_is_named(request, facts, layout, name):
    folder = request.getfixturevalue(layout)
    key = name.replace("midlayer.", "layers.0.") if layout == "speculators" else name
    edit_tensors(folder, lambda tensors: tensors.update({key: torch.zeros(3, 5)}))
    assert f"{name} is [3, 5], wanted [" in refusal(folder, facts)
    edit_tensors(folder, lambda tensors: tensors.pop(key))
    assert f"lacks {name}" in refusal(folder, facts)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("midlayer.self_attn.q_norm.weight", "this head norms queries and keys, which drafterforge does not support"),
        ("midlayer.self_attn.q_proj.bias", "this head has biases"),
        ("input_norm.weight", "this head norms features before fc"),
        ("fc_norm.0.weight", "its config does not set fc_norm=true, without which servers ignore these norms"),
        ("draft_model.norm.weight", "unexpected tensors, draft_model.norm.weight"),
        ("layers.1.mlp.up_proj.weight", "unexpected tensors, layers.1.mlp.up_proj.weight"),
    ],
)
def test_an_unexpected_tensor_is_named_and_explained(facts, eagle3, name, why):
    edit_tensors(eagle3, lambda tensors: tensors.update({name: torch.zeros(2)}))
    line = refusal(eagle3, facts)
    assert why in line and name in line


def test_a_layer_stored_under_two_names_is_refused(facts, speculators):
    edit_tensors(speculators, lambda t: t.update({"midlayer.hidden_norm.weight": torch.zeros(32)}))
    assert "both as midlayer.* and as layers.0.*" in refusal(speculators, facts)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda t: t["d2t"].__setitem__(1, int(t["d2t"][0]) - 1), "d2t does not map draft ids to distinct target ids"),
        (lambda t: t["d2t"].__setitem__(0, -1), "d2t does not map draft ids to distinct target ids"),
        (lambda t: t.update(d2t=t["d2t"] + torch.arange(40)), "d2t does not map draft ids to distinct target ids"),
        (lambda t: t["t2d"].logical_not_(), "t2d and d2t name different tokens"),
        (lambda t: t.update(d2t=t["d2t"].float()), "d2t is of torch.float32"),
        (lambda t: t.update(d2t=t["d2t"][:-1].clone()), "d2t is [39], wanted [40]"),
        (lambda t: t.pop("lm_head.weight"), "lacks lm_head.weight"),
        (lambda t: t["norm.weight"].__setitem__(3, torch.nan), "norm.weight holds numbers that are not finite"),
        (lambda t: t.update({"norm.weight": torch.ones(32, dtype=torch.int8)}), "norm.weight is of torch.int8"),
    ],
    ids=["twice", "negative", "ids for offsets", "maps differ", "floats", "short", "no head", "nan", "quantised"],
)
def test_impossible_tensors_are_refused(facts, eagle3, change, line):
    edit_tensors(eagle3, change)
    if "does not map" in line:  # d2t alone must be enough to see it
        edit_tensors(eagle3, lambda tensors: tensors.pop("t2d"))
    assert line in refusal(eagle3, facts)
