"""Exported block drafters are imported again, from both layouts; what does not fit is refused in one line."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafterforge.drafters.block.checkpoint import load_generalist
from drafterforge.drafters.eagle3.checkpoint import save_drafter
from drafterforge.errors import ArtifactError
from drafterforge.interop.published_heads import read_head
from drafterforge.interop.vllm.layouts import write_vllm
from tests.bundle.builders import edit, random_block


@pytest.mark.parametrize(
    "more",
    [{}, {"markov_rank": 3, "num_layers": 1}, {"markov_rank": 3, "confidence": True}],
    ids=["DFlash", "DSpark", "confidence"],
)
@pytest.mark.parametrize("layout", ["speculators", "plain"])
def test_an_export_is_imported_as_it_was(facts, tmp_path, layout, more):
    drafter = random_block(facts, **more)
    command = write_vllm(tmp_path, drafter, facts, tmp_path, layout)
    method = "dspark" if more else "dflash"
    assert layout == "speculators" or (f'"method": "{method}"' in command and '"num_speculative_tokens": 4' in command)
    head = read_head(tmp_path, facts)
    assert (head.kind, head.format) == ("block", method)
    assert replace(head.drafter.spec, max_positions=drafter.spec.max_positions) == drafter.spec
    state = drafter.state_dict()
    assert all(torch.equal(state[name], value) for name, value in head.drafter.state_dict().items())


@pytest.mark.parametrize("layout", ["speculators", "plain"])
@pytest.mark.parametrize("taps", [(3,), (0, 1, 3, 5, 6)])
def test_a_drafter_may_read_any_number_of_layers(facts, tmp_path, layout, taps):
    tapped = replace(facts, taps=taps)
    drafter = random_block(tapped)
    assert drafter.fc.in_features == len(taps) * facts.config.hidden_size
    write_vllm(tmp_path, drafter, tapped, tmp_path, layout)
    assert torch.equal(read_head(tmp_path, tapped).drafter.fc.weight, drafter.fc.weight)


def test_confidence_may_leave_out_the_pair_scores(facts, tmp_path):
    drafter = random_block(facts, markov_rank=3, confidence=True)
    write_vllm(tmp_path, drafter, facts, tmp_path)
    tensors, name = load_file(tmp_path / "model.safetensors"), "confidence_head.proj.weight"
    plain = tensors[name][:, : drafter.spec.hidden_size].contiguous()
    save_file({**tensors, name: plain}, tmp_path / "model.safetensors")
    weight = read_head(tmp_path, facts).drafter.confidence_head.proj.weight
    assert torch.equal(weight[:, :-3], plain.float()) and not weight[:, -3:].any()


def test_a_saved_drafter_is_loaded_as_it_was(facts, tmp_path):
    drafter = random_block(facts, markov_rank=3, confidence=True)
    save_drafter(tmp_path, drafter)
    loaded = load_generalist(tmp_path, facts.embedding)
    assert loaded.spec == drafter.spec
    state = drafter.state_dict()
    assert all(torch.equal(state[name], value) for name, value in loaded.state_dict().items())


def test_a_drafter_of_all_tokens_may_leave_out_the_maps(facts, tmp_path):
    drafter = random_block(facts, facts.config.vocab_size)
    write_vllm(tmp_path, drafter, facts, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("d2t", "t2d", "embed_tokens.weight"):
        del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.equal(read_head(tmp_path, facts).drafter.token_ids, torch.arange(facts.config.vocab_size))


def test_a_drafter_without_a_head_takes_that_of_an_untied_target(facts, tmp_path):
    drafter = random_block(facts, facts.config.vocab_size)
    write_vllm(tmp_path, drafter, facts, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    head = tensors.pop("lm_head.weight")
    for name in ("d2t", "t2d", "embed_tokens.weight"):
        del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "target").mkdir()
    save_file({"lm_head.weight": head}, tmp_path / "target" / "model.safetensors")
    config = copy.copy(facts.config)
    config.tie_word_embeddings = False
    untied = replace(facts, folder=tmp_path / "target", config=config)
    assert torch.equal(read_head(tmp_path, untied).drafter.state_dict()["lm_head.weight"], head.float())
    (tmp_path / "target" / "model.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"lacks lm_head\.weight, and the target's head is not its embedding"):
        read_head(tmp_path, untied)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"aux_hidden_state_layer_ids": [1, 2, 5]},
            r"tapped at \[2, 3, 4\]; type target.taps=\[1,2,5\]",
        ),
        ({"aux_hidden_state_layer_ids": []}, r"is \(\), wanted 1 to 64"),
        ({"aux_hidden_state_layer_ids": [1] * 65}, "wanted 1 to 64"),
        ({"sample_from_anchor": True}, "sample_from_anchor=True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"block_size": 1}, "block_size is 1, wanted a number from 2"),
        ({"mask_token_id": 100_000_000}, "mask_token_id is 100000000"),
        ({"mask_token_id": None}, "mask_token_id"),
        ({"block_size": "8"}, "block_size is"),
        ({"transformer_layer_config": None}, "is not that of a block drafter"),
    ],
)
def test_what_does_not_fit_is_refused(facts, tmp_path, change, line):
    write_vllm(tmp_path, random_block(facts), facts, tmp_path)
    edit(tmp_path, **change)
    with pytest.raises(ArtifactError, match=line) as raised:
        read_head(tmp_path, facts)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("layout", ["speculators", "plain"])
def test_a_drafter_whose_anchor_may_propose_is_refused(facts, tmp_path, layout):
    write_vllm(tmp_path, random_block(facts, markov_rank=3), facts, tmp_path, layout)
    edit(tmp_path, sample_from_anchor=...)
    if layout == "plain":
        read_head(tmp_path, facts)  # dspark_bonus_anchor says the same
        edit(tmp_path, dspark_bonus_anchor=...)
    with pytest.raises(ArtifactError, match="neither sample_from_anchor=false nor dspark_bonus_anchor=true"):
        read_head(tmp_path, facts)


def test_the_rope_is_read_from_older_configs_and_a_contradiction_is_refused(facts, tmp_path):
    write_vllm(tmp_path, random_block(facts), facts, tmp_path, "plain")
    edit(tmp_path, rope_parameters=..., rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0})
    rope = read_head(tmp_path, facts).drafter.spec.rope_parameters
    assert (rope["rope_type"], rope["rope_theta"], rope["factor"]) == ("linear", 5e5, 2.0)
    edit(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    with pytest.raises(ArtifactError, match="contradicts itself"):
        read_head(tmp_path, facts)


def test_settings_of_eagle_heads_are_refused(facts, tmp_path):
    write_vllm(tmp_path, random_block(facts), facts, tmp_path)
    with pytest.raises(ArtifactError, match="is a block drafter; format=, layer_ids="):
        read_head(tmp_path, facts, layer_ids=[1, 2, 3])


@pytest.mark.parametrize("name", ["fc.weight", "layers.1.self_attn.q_norm.weight", "lm_head.weight"])
def test_a_missing_or_misshapen_tensor_is_refused(facts, tmp_path, name):
    write_vllm(tmp_path, random_block(facts), facts, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, name: tensors[name][:-1].contiguous()}, tmp_path / "model.safetensors")
    with pytest.raises(ArtifactError, match=name):
        read_head(tmp_path, facts)
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ArtifactError, match=f"lacks {name}"):
        read_head(tmp_path, facts)


def test_a_tensor_of_a_newer_drafter_is_refused(facts, tmp_path):
    write_vllm(tmp_path, random_block(facts), facts, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors") | {"layers.0.conv.weight": torch.zeros(2)}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ArtifactError, match=r"holds unexpected tensors, layers\.0\.conv\.weight"):
        read_head(tmp_path, facts)
