"""Configs of published heads: supported ones are read as their servers read them, and all others are refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from drafterforge.errors import ArtifactError
from drafterforge.interop.published_heads import read_head
from drafterforge.interop.sglang.layout import write_sglang
from drafterforge.interop.vllm.layouts import write_vllm
from tests.bundle.absurd import ABSURD, node_paths, put
from tests.bundle.builders import edit, edit_tensors, random_drafter
from tests.bundle.heads import LAYER, equal_weights, notes, refusal
from tests.models import NORMS

IDS = "eagle_aux_hidden_state_layer_ids"


# Configs.


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "has architectures=['Qwen3ForCausalLM']"),
        ({"architectures": None}, "has architectures=None"),
        ({"quantization_config": {"bits": 4}}, "describes quantised weights"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "wanted an EAGLE-3 head"),
        ({"fc_norm": True}, "lacks fc_norm.0.weight, fc_norm.1.weight, fc_norm.2.weight"),
        ({"norm_before_fc": True}, "sets norm_before_fc (one norm over all features)"),
        ({"eagle_config": {"norm_before_fc": True}}, "sets norm_before_fc (one norm over all features)"),
        (
            {"eagle_config": {"fc_norm": True}},
            "sets fc_norm where SGLang and vLLM do not read it; if meant, set fc_norm=true",
        ),
        ({"eagle_config": {"norm_output": True}}, "sets norm_output where SGLang and vLLM do not read it"),
        ({"eagle_config": {"return_hidden_post_norm": True}}, "if meant, set norm_output=true at the top level"),
        ({"attention_bias": True}, "sets attention_bias"),
        ({"num_hidden_layers": 2}, "has 2 layers"),
        ({"model_type": "qwen3"}, "has a layer of model_type 'qwen3'"),
        ({"hidden_act": "gelu"}, "has hidden_act='gelu'"),
        ({"vocab_size": 99}, "is for a target of vocabulary 99 and width 32; this target has"),
        ({"target_hidden_size": 64}, "is for a target of vocabulary 259 and width 64"),
        (
            {"hidden_size": 16, "target_hidden_size": 32},
            "has width 16; drafterforge supports heads with their target's width",
        ),
        ({"draft_vocab_size": 41}, "has draft_vocab_size=41, but lm_head.weight has 40 rows"),
        ({"hidden_size": ...}, "lacks 'hidden_size'"),
        ({"intermediate_size": 0}, "has intermediate_size=0; wanted a whole number above 0"),
        ({"num_attention_heads": "4"}, "has num_attention_heads='4'"),
        ({"rms_norm_eps": None}, "has rms_norm_eps=None; wanted a number between 0 and 1"),
        ({"rope_theta": 5.0}, "contradicts itself: rope_theta is 10000.0 in rope_parameters and 5.0 besides"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "contradicts itself: factor is None in rope_parameters"),
        ({"rope_parameters": ..., "rope_scaling": {"type": "mrope"}}, "has a rope of type 'mrope'"),
        ({"rope_parameters": {"full_attention": {}}}, "wanted the parameters of one rope"),
        ({"partial_rotary_factor": 0.5}, "sets partial_rotary_factor"),
        ({"fc_norm": "yes"}, "has fc_norm='yes'; wanted true or false"),
        (
            {IDS: [3, 4, 5], "eagle_config": ...},
            "reads the inputs of layers [3, 4, 5], but the target is tapped at [2, 3, 4]; type target.taps=[3,4,5]",
        ),
        ({IDS: [2, 3]}, "has eagle_aux_hidden_state_layer_ids=[2, 3]; wanted three whole numbers"),
    ],
)
def test_an_unsupported_architecture_is_refused(facts, eagle3, changes, line):
    edit(eagle3, **changes)
    assert line in refusal(eagle3, facts)


def test_another_speculator_is_refused(facts, speculators):
    edit(speculators, speculators_model_type="medusa")
    assert "describes a 'medusa' speculator; wanted 'eagle3'" in refusal(speculators, facts)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        ({"rope_theta": 5000.0, "rope_scaling": None}, {"rope_type": "default", "rope_theta": 5000.0}),
        (
            {"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
        ),
        ({"rope_parameters": {"rope_theta": 5000.0}}, {"rope_type": "default", "rope_theta": 5000.0}),
        ({"rope_parameters": {"rope_type": "default"}, "rope_theta": 7.0}, {"rope_type": "default", "rope_theta": 7.0}),
    ],
)
def test_both_spellings_of_a_rope_are_read(facts, eagle3, layer, expected):
    edit(eagle3, rope_parameters=..., rope_theta=..., rope_scaling=...)
    edit(eagle3, **layer)
    assert read_head(eagle3, facts).drafter.spec.rope_parameters == expected


def test_the_longest_sequence_becomes_the_targets(facts, eagle3):
    edit(eagle3, max_position_embeddings=512)
    assert "max_position_embeddings was 512 and is now the target's 2048" in notes(eagle3, facts)
    facts.config.max_position_embeddings = 4096
    try:
        edit(eagle3, max_position_embeddings=2048)
        assert "2048 is the value of EAGLE's own configs" in notes(eagle3, facts)
    finally:
        facts.config.max_position_embeddings = 2048
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}
    edit(eagle3, rope_parameters=yarn, rope_theta=..., rope_scaling=..., max_position_embeddings=64)
    assert "max_position_embeddings is 64, the target's 2048; it stays" in notes(eagle3, facts)
    assert read_head(eagle3, facts).drafter.spec.max_positions == 64


def test_a_note_names_the_sliding_window_of_training(facts, speculators):
    edit(speculators, LAYER, layer_types=["sliding_attention"], sliding_window=128)
    assert "trained with a sliding window of 128 tokens" in notes(speculators, facts)


# Layers whose features the head reads: [2, 3, 4] in the tiny target of 7 layers.


@pytest.mark.parametrize(
    ("top", "nested", "fits"),
    [
        ([2, 3, 4], [1, 2, 3], True),  # what we write
        ([2, 3, 4], None, True),
        (None, [1, 2, 3], True),  # SGLang adds 1
        (None, None, True),
        ([2, 3, 4], [2, 3, 4], "contradicts itself"),
        ([1, 2, 3], [1, 2, 3], "contradicts itself"),
        (None, [2, 3, 4], "in eagle_config only, which means [3, 4, 5] to SGLang and [2, 3, 4] to vLLM"),
        (None, [2, 3, 5], "reads the inputs of layers [3, 4, 6]"),
        ([1, 3, 4], None, "reads the inputs of layers [1, 3, 4]"),
    ],
)
def test_both_conventions_for_layer_ids_are_read(facts, eagle3, top, nested, fits):
    edit(eagle3, **{IDS: top, "eagle_config": {IDS: nested} if nested else None})
    if fits is True:
        assert read_head(eagle3, facts).drafter.spec.tap_layers == (2, 3, 4)
        return
    line = refusal(eagle3, facts)
    assert fits in line
    if "type layer_ids=" in line and [2, 3, 4] in (top, nested):
        assert read_head(eagle3, facts, layer_ids=[2, 3, 4]).drafter.spec.tap_layers == (2, 3, 4)


def test_typed_layer_ids_must_agree_with_the_config(facts, eagle3):
    edit(eagle3, **{IDS: [3, 4, 5], "eagle_config": None})
    assert "names the layers [3, 4, 5], not layer_ids=[2, 3, 4]" in refusal(eagle3, facts, layer_ids=[2, 3, 4])
    edit(eagle3, **{IDS: None})
    assert read_head(eagle3, facts, layer_ids=[2, 3, 4]).drafter.spec.tap_layers == (2, 3, 4)
    assert "reads the inputs of layers [1, 2, 3]" in refusal(eagle3, facts, layer_ids=[1, 2, 3])


# EAGLE-3.1's norms.


@pytest.fixture(params=["eagle3", "speculators"])
def head_31(request, tmp_path, facts):
    """A head with both norms, and its drafter."""
    drafter = random_drafter(facts, **NORMS["EAGLE-3.1"])
    write = {"eagle3": write_sglang, "speculators": write_vllm}[request.param]
    write(tmp_path, drafter, facts, tmp_path)
    return tmp_path, drafter


def test_a_head_of_eagle_3_1_is_read(facts, head_31):
    folder, drafter = head_31
    head = read_head(folder, facts)
    assert head.drafter.spec == drafter.spec and equal_weights(head.drafter, drafter)
    warning = "SpecForge 0.2.0 also wrote it for heads trained without"
    assert (warning in "\n".join(head.notes)) == (head.format == "eagle3")


@pytest.mark.parametrize("number", range(3))
def test_a_wrong_or_missing_norm_of_a_feature_is_named(facts, head_31, number):
    folder, name = head_31[0], f"fc_norm.{number}.weight"
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.ones(96)}))
    assert f"{name} is [96], wanted [32]" in refusal(folder, facts)
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.full((32,), torch.nan)}))
    assert f"{name} holds numbers that are not finite" in refusal(folder, facts)
    edit_tensors(folder, lambda tensors: tensors.pop(name))
    assert f"lacks {name}" in refusal(folder, facts)


def test_a_config_without_the_flags_of_eagle_3_1_means_another_head_or_is_refused(facts, head_31):
    folder, drafter = head_31
    edit(folder, norm_output=...)  # no tensor shows whether this norm exists
    assert read_head(folder, facts).drafter.spec == replace(drafter.spec, norm_output=False)
    edit(folder, fc_norm=False)
    assert "its config does not set fc_norm=true" in refusal(folder, facts)


def test_flags_inside_the_layer_config_are_refused_because_servers_ignore_them(facts, speculators):
    edit(speculators, norm_output=...)
    edit(speculators, LAYER, norm_output=True)
    assert "sets norm_output where SGLang and vLLM do not read it" in refusal(speculators, facts)


# A missing norm_before_residual means true to vLLM and false to speculators.


def test_without_norm_before_residual_a_speculators_head_needs_the_typed_value(facts, speculators):
    edit(speculators, norm_before_residual=...)
    assert "which is true by default in vLLM and false in speculators" in refusal(speculators, facts)
    for typed in (True, False):
        assert read_head(speculators, facts, norm_before_residual=typed).drafter.spec.norm_before_residual is typed


@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_norm_before_residual_of_the_config_cannot_be_overridden(request, facts, layout):
    folder = request.getfixturevalue(layout)
    edit(folder, norm_before_residual=True)
    assert read_head(folder, facts).drafter.spec.norm_before_residual is True
    assert "has norm_before_residual=true" in refusal(folder, facts, norm_before_residual=False)


def test_without_norm_before_residual_an_eagle_head_means_false(facts, eagle3):
    edit(eagle3, norm_before_residual=...)
    assert read_head(eagle3, facts).drafter.spec.norm_before_residual is False


# Long values in errors.

LONG = "x" * 100_000


@pytest.mark.parametrize("value", [LONG, [LONG], {LONG: LONG}, 10**4000], ids=["text", "list", "object", "number"])
@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_an_error_quotes_only_a_part_of_a_long_value(request, facts, layout, value):
    folder = request.getfixturevalue(layout)
    complete, refusals = json.loads((folder / "config.json").read_text()), 0
    for node in node_paths(complete):
        (folder / "config.json").write_text(json.dumps(put(complete, node, value)))
        try:
            read_head(folder, facts)
        except ArtifactError as error:
            refusals += 1
            assert len(str(error)) < 800, (node, str(error)[:200])
    assert refusals > 10


def test_an_error_quotes_only_a_part_of_a_long_tensor_name(facts, eagle3):
    edit_tensors(eagle3, lambda tensors: tensors.update({LONG: torch.zeros(1)}))
    assert len(refusal(eagle3, facts)) < 800


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_no_absurd_value_in_a_config_crashes_the_reader(request, facts, layout):
    folder = request.getfixturevalue(layout)
    path = folder / "config.json"
    edit(folder, LAYER * (layout == "speculators"), layer_types=None, qkv_bias=None, quantization_config=None)
    complete = json.loads(path.read_text())
    read = 0
    wrong: list[str] = []
    for number, node in enumerate(node_paths(complete)):
        for value in ABSURD[number % 2 :: 2]:  # half of the values at each node
            path.write_text(json.dumps(put(complete, node, value)))
            try:
                read_head(folder, facts)
                read += 1
            except ArtifactError as error:
                if "\n" in str(error):
                    wrong.append(f"{node} = {str(value)[:30]!r}: {str(error)[:200]!r}")
            except Exception as error:
                wrong.append(f"{node} = {str(value)[:30]!r}: {type(error).__name__} {str(error)[:200]!r}")
    assert not wrong, "\n".join(wrong)
    assert read > 50  # most keys are not checked
    path.write_text("[" * 200_000 + "]" * 200_000)
    assert "nested too deeply" in refusal(folder, facts)
