"""Drafters on disk: a loaded drafter equals the saved one, in the layout that other programs read."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafterforge.drafters.eagle3.checkpoint import load_drafter, save_drafter
from drafterforge.drafters.eagle3.spec import FLAGS, DrafterSpec
from drafterforge.errors import ArtifactError
from tests.models import FAMILIES, NORMS, tiny_drafter, tiny_target, uneven

# /shared reference: keys and tensors that vLLM, OpenVINO, speculators and llama.cpp's converter loaded
TAPS = "eagle_aux_hidden_state_layer_ids"
CONFIG_KEYS = [
    "architectures",
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_hidden_layers",
    "hidden_act",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "max_position_embeddings",
    "vocab_size",
    "draft_vocab_size",
    "target_hidden_size",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "torch_dtype",
    "eagle_config",
    "eagle_aux_hidden_state_layer_ids",
    "norm_before_residual",
    "fc_norm",
    "norm_output",
]
SHAPES = {
    "fc.weight": [32, 96],
    "norm.weight": [32],
    "lm_head.weight": [40, 32],
    "d2t": [40],
    "t2d": [61],
    "midlayer.input_layernorm.weight": [32],
    "midlayer.hidden_norm.weight": [32],
    "midlayer.post_attention_layernorm.weight": [32],
    "midlayer.self_attn.q_proj.weight": [32, 64],
    "midlayer.self_attn.k_proj.weight": [16, 64],
    "midlayer.self_attn.v_proj.weight": [16, 64],
    "midlayer.self_attn.o_proj.weight": [32, 32],
    "midlayer.mlp.gate_proj.weight": [48, 32],
    "midlayer.mlp.up_proj.weight": [48, 32],
    "midlayer.mlp.down_proj.weight": [32, 48],
}


@pytest.fixture
def saved(drafter, tmp_path):
    save_drafter(tmp_path, drafter)
    return tmp_path


def edit(folder, **changes) -> None:
    """Change config.json; a value of ... takes the key away."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def edit_tensors(folder, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def refusal(folder, embedding) -> str:
    with pytest.raises(ArtifactError) as caught:
        load_drafter(folder, embedding)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    return str(caught.value)


def test_a_loaded_drafter_equals_the_saved_one_in_bfloat16_and_has_its_maps(drafter, saved):
    back = load_drafter(saved, drafter.embedding)
    assert back.spec == drafter.spec
    for name, value in drafter.state_dict().items():
        loaded = back.state_dict()[name]
        assert loaded.dtype == value.dtype, name
        assert torch.equal(loaded, value.bfloat16().float() if value.is_floating_point() else value), name
    assert torch.equal(back.token_ids, drafter.token_ids)


def test_a_drafter_saved_again_is_the_same_file(drafter, saved, tmp_path_factory):
    again = tmp_path_factory.mktemp("again")
    save_drafter(again, load_drafter(saved, drafter.embedding))
    for name in ("model.safetensors", "config.json"):
        assert (again / name).read_bytes() == (saved / name).read_bytes()


def test_float32_weights_are_loaded_without_rounding(drafter, tmp_path):
    save_drafter(tmp_path, drafter, torch.float32)
    back = load_drafter(tmp_path, drafter.embedding).state_dict()
    assert all(torch.equal(back[name], value) for name, value in drafter.state_dict().items())


def test_the_files_are_those_that_other_programs_load(drafter, saved):
    tensors = load_file(saved / "model.safetensors")
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == SHAPES
    assert (tensors["d2t"].dtype, tensors["t2d"].dtype) == (torch.int64, torch.bool)
    floats = {tensor.dtype for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    assert floats == {torch.bfloat16}
    ids = tensors["d2t"] + torch.arange(40)  # d2t holds offsets
    assert torch.equal(ids, drafter.token_ids) and torch.equal(tensors["t2d"].nonzero()[:, 0], ids.sort().values)


def test_the_config_has_every_key_that_other_programs_read(drafter, saved):
    config = json.loads((saved / "config.json").read_text())
    assert set(CONFIG_KEYS) <= config.keys()
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["model_type"] == "llama"
    assert (config["num_hidden_layers"], config["tie_word_embeddings"]) == (1, False)
    assert (config["vocab_size"], config["draft_vocab_size"], config["target_hidden_size"]) == (61, 40, 32)
    assert config["eagle_aux_hidden_state_layer_ids"] == list(drafter.spec.tap_layers) == [2, 3, 4]
    assert config["eagle_config"] == {
        "use_aux_hidden_state": True,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    }
    assert config["norm_before_residual"] is False and config["torch_dtype"] == "bfloat16"
    assert config["rope_scaling"] is None and config["rope_theta"] == 10000.0
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 0)


def test_a_scaled_rope_is_written_in_both_spellings():
    rope = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
    target = tiny_target(rope_parameters=rope)
    config = DrafterSpec.for_target(target.config, target.backbone.taps, 40).to_config("bfloat16")
    assert config["rope_theta"] == 5000.0
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert config["rope_parameters"] == rope


@pytest.mark.parametrize("family", FAMILIES)
def test_the_config_determines_the_spec(family):
    target = tiny_target(family)
    spec = DrafterSpec.for_target(target.config, target.backbone.taps, 1000)
    assert spec.draft_vocab_size == 61
    assert DrafterSpec.from_config(json.loads(json.dumps(spec.to_config("bfloat16"))), "x") == spec


def test_a_target_that_rotates_a_part_of_its_heads_gets_a_drafter_that_rotates_all():
    config = tiny_target().config
    config.rope_parameters = {"rope_type": "longrope", "rope_theta": 500.0, "partial_rotary_factor": 0.75}  # as Phi-4
    spec = DrafterSpec.for_target(config, (0, 1, 2), 40)
    frequencies, factor = spec.rotary()
    assert len(frequencies) == spec.head_dim // 2 and factor == 1.0
    assert spec.rope_parameters == {"rope_type": "default", "rope_theta": 500.0}


def test_a_target_with_a_rope_for_each_type_of_layer_gives_its_drafter_that_of_full_attention():
    config = tiny_target().config
    full = {"rope_type": "default", "rope_theta": 1e6}
    config.rope_parameters = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": full}
    assert DrafterSpec.for_target(config, (0, 1, 2), 40).rope_parameters == full  # as Gemma 3


def test_embeddings_of_other_writers_are_ignored(drafter, saved):
    edit_tensors(saved, lambda tensors: tensors.update({"embed_tokens.weight": torch.zeros(61, 32)}))
    assert torch.equal(load_drafter(saved, drafter.embedding).embedding, drafter.embedding)


# Loading is strict.


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", SHAPES)
def test_a_missing_tensor_is_named(drafter, saved, name):
    edit_tensors(saved, lambda tensors: tensors.pop(name))
    assert f"lacks {name}" in refusal(saved, drafter.embedding)


def test_an_unexpected_tensor_is_named(drafter, saved):
    edit_tensors(saved, lambda tensors: tensors.update({"midlayer.extra.weight": torch.zeros(2)}))
    assert "holds unexpected tensors: midlayer.extra.weight" in refusal(saved, drafter.embedding)


@pytest.mark.parametrize("name", SHAPES)
def test_a_misshapen_tensor_is_named(drafter, saved, name):
    edit_tensors(saved, lambda tensors: tensors.update({name: torch.zeros(3, 5)}))
    assert f"{name} is [3, 5], wanted {SHAPES[name]}" in refusal(saved, drafter.embedding)


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "header"])
def test_a_damaged_weight_file_is_refused(drafter, saved, damage):
    path = saved / "model.safetensors"
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        header = struct.pack("<Q", 1 << 40) + content[8:]
        path.write_bytes({"cut": content[:-100], "empty": b"", "header": header}[damage])
    assert "is not a readable drafter" in refusal(saved, drafter.embedding)


@pytest.mark.parametrize("content", [None, "", "{", "[]", "null"])
def test_a_damaged_config_is_refused(drafter, saved, content):
    path = saved / "config.json"
    path.unlink() if content is None else path.write_text(content)
    refusal(saved, drafter.embedding)


@pytest.mark.parametrize("hidden", [16, 64])
def test_another_width_than_the_target_s_is_refused(drafter, saved, hidden):
    edit(saved, hidden_size=hidden)
    assert f"hidden_size is {hidden}, target_hidden_size 32; wanted the same" in refusal(saved, drafter.embedding)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Eagle3Speculator"])
def test_another_architecture_is_named(drafter, saved, architecture):
    edit(saved, architectures=[architecture])
    assert f"describes a {architecture!r}, wanted 'LlamaForCausalLMEagle3'" in refusal(saved, drafter.embedding)


@pytest.mark.parametrize(
    "key", ["hidden_size", "draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "rope_parameters"]
)
def test_a_missing_key_is_named(drafter, saved, key):
    edit(saved, **{key: ...})
    assert f"lacks the key {key!r}" in refusal(saved, drafter.embedding)


def test_an_unsupported_variant_is_refused(drafter, saved):
    edit(saved, norm_before_fc=True)
    assert "sets norm_before_fc, which this version does not support" in refusal(saved, drafter.embedding)


@pytest.mark.parametrize("norms", [{"norm_before_residual": True}, *NORMS.values()], ids=["before residual", *NORMS])
def test_loaded_norms_equal_the_saved_ones(tmp_path, norms):
    drafter = uneven(tiny_drafter(tiny_target(), **norms))
    save_drafter(tmp_path, drafter, torch.float32)
    config = json.loads((tmp_path / "config.json").read_text())
    assert {flag: config[flag] for flag in FLAGS} == dict.fromkeys(FLAGS, False) | norms
    back = load_drafter(tmp_path, drafter.embedding)
    assert back.spec == drafter.spec
    assert all(torch.equal(back.state_dict()[name], value) for name, value in drafter.state_dict().items())


@pytest.mark.parametrize("flag", FLAGS)
def test_a_config_without_the_flag_of_a_norm_has_no_norm(drafter, saved, flag):
    edit(saved, **{flag: ...})
    assert load_drafter(saved, drafter.embedding).spec == drafter.spec
    edit(saved, **{flag: "yes"})
    assert f"has {flag}=yes, wanted true or false" in refusal(saved, drafter.embedding)


@pytest.mark.parametrize("number", range(3))
def test_a_wrong_or_missing_norm_of_a_feature_is_named(tmp_path, number):
    drafter, name = tiny_drafter(tiny_target(), fc_norm=True), f"fc_norm.{number}.weight"
    save_drafter(tmp_path, drafter)
    edit_tensors(tmp_path, lambda tensors: tensors.update({name: torch.ones(96)}))
    assert f"{name} is [96], wanted [32]" in refusal(tmp_path, drafter.embedding)
    edit_tensors(tmp_path, lambda tensors: tensors.pop(name))
    assert f"lacks {name}" in refusal(tmp_path, drafter.embedding)
    edit_tensors(tmp_path, lambda tensors: tensors.update({name: torch.ones(32), "fc_norm.3.weight": torch.ones(32)}))
    assert "holds unexpected tensors: fc_norm.3.weight" in refusal(tmp_path, drafter.embedding)


def test_norms_of_features_without_the_config_s_flag_are_refused(drafter, saved):
    edit_tensors(saved, lambda tensors: tensors.update({"fc_norm.0.weight": torch.ones(32)}))
    assert "holds unexpected tensors: fc_norm.0.weight" in refusal(saved, drafter.embedding)


@pytest.mark.parametrize("shape", [(61, 16), (60, 32)])
def test_a_target_of_another_size_is_refused(drafter, saved, shape):
    line = refusal(saved, torch.zeros(shape))
    assert f"vocabulary 61 and width 32; this target has {shape[0]} and {shape[1]}" in line


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t["d2t"].__setitem__(1, int(t["d2t"][0]) - 1),  # draft id 1 gets the target id of draft id 0
        lambda t: t["d2t"].__setitem__(0, -1),
        lambda t: t["d2t"].__setitem__(39, 61 - 39),
    ],
    ids=["twice", "negative", "too large"],
)
def test_an_impossible_vocabulary_map_is_refused(drafter, saved, change):
    edit_tensors(saved, change)
    assert "d2t does not map draft ids to distinct target ids below 61" in refusal(saved, drafter.embedding)


def test_contradictory_maps_are_refused(drafter, saved):
    edit_tensors(saved, lambda tensors: tensors["t2d"].logical_not_())
    assert "t2d and d2t name different tokens" in refusal(saved, drafter.embedding)


def test_the_order_of_a_vocabulary_map_is_preserved(drafter, saved):
    def swap(tensors):
        tensors["d2t"][[0, 1]] = torch.stack((tensors["d2t"][1] + 1, tensors["d2t"][0] - 1))

    edit_tensors(saved, swap)
    ids = load_drafter(saved, tiny_drafter(tiny_target()).embedding).token_ids
    assert ids[:2].tolist() == drafter.token_ids[:2].flip(0).tolist()


@pytest.fixture
def tied(drafter, tmp_path):
    """A drafter whose head is the target's embedding, saved."""
    with torch.no_grad():
        drafter.lm_head.weight.copy_(drafter.embedding[drafter.token_ids])
    save_drafter(tmp_path, drafter)
    return tmp_path


def test_a_head_tied_to_the_embedding_is_not_stored_but_loaded(drafter, tied):
    assert "lm_head.weight" not in load_file(tied / "model.safetensors")
    back = load_drafter(tied, drafter.embedding)
    assert torch.equal(back.lm_head.weight, drafter.embedding[drafter.token_ids])
    embedding = torch.randn_like(drafter.embedding)
    assert torch.equal(load_drafter(tied, embedding).lm_head.weight, embedding[drafter.token_ids])


def test_a_config_that_contradicts_the_stored_head_is_refused(drafter, tied):
    edit(tied, head_rows="elsewhere")
    assert "wanted 'target_embedding'" in refusal(tied, drafter.embedding)
    edit(tied, head_rows=...)
    assert "lacks lm_head.weight" in refusal(tied, drafter.embedding)
    edit(tied, head_rows="target_embedding")
    edit_tensors(tied, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(40, 32)}))
    assert "no lm_head.weight beside it" in refusal(tied, drafter.embedding)
