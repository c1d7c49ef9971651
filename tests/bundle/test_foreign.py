"""Published heads: what fits is read to the last bit; what does not, or is read differently elsewhere, is refused."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

from drafterforge.errors import ArtifactError
from drafterforge.interop.published_heads import fetch_head, read_head
from drafterforge.interop.sglang import write_sglang
from drafterforge.interop.vllm import write_vllm
from tests.bundle.absurd import ABSURD, leaves, put
from tests.bundle.made import edit, edit_tensors, random_drafter
from tests.models import NORMS

LAYER = "transformer_layer_config"
IDS = "eagle_aux_hidden_state_layer_ids"
WEIGHTS = ["fc.weight", "norm.weight", "midlayer.hidden_norm.weight", "midlayer.self_attn.q_proj.weight"]


def refused(folder, facts, **typed) -> str:
    with pytest.raises(ArtifactError) as caught:
        read_head(folder, facts, **typed)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    return str(caught.value)


def same(found, expected) -> bool:
    return all(torch.equal(found.state_dict()[key], tensor) for key, tensor in expected.state_dict().items())


def notes(folder, facts, **typed) -> str:
    return "\n".join(read_head(folder, facts, **typed).notes)


# Layouts.


@pytest.mark.parametrize("format", ["auto", "itself"])
@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_a_layout_is_told_by_its_config(request, facts, drafter, layout, format):
    head = read_head(request.getfixturevalue(layout), facts, layout if format == "itself" else "auto")
    assert head.format == layout and same(head.drafter, drafter) and head.drafter.spec == drafter.spec
    assert head.files.keys() == {"config.json", "model.safetensors"}


@pytest.mark.parametrize(("layout", "typed"), [("eagle3", "speculators"), ("speculators", "eagle3")])
def test_another_layout_than_typed_is_refused(request, facts, layout, typed):
    line = refused(request.getfixturevalue(layout), facts, format=typed)
    assert f"has the layout {layout}, not {typed}; type format={layout}" in line


@pytest.mark.parametrize("name", ["Eagle3LlamaForCausalLM", "LlamaForCausalLM"])
def test_names_that_safeailab_and_vllm_give_the_architecture(facts, drafter, eagle3, name):
    edit(eagle3, architectures=[name])
    assert same(read_head(eagle3, facts).drafter, drafter)


def test_a_config_of_the_least_keys_that_are_published(facts, drafter, eagle3):
    keep = ("architectures", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    keep += ("rms_norm_eps", "vocab_size", "draft_vocab_size")
    config = json.loads((eagle3 / "config.json").read_text())
    (eagle3 / "config.json").write_text(json.dumps({key: config[key] for key in keep}))
    edit_tensors(eagle3, lambda tensors: tensors.pop("t2d"))
    head = read_head(eagle3, facts)
    assert head.drafter.spec == drafter.spec and same(head.drafter, drafter)
    assert "names no layers: assuming the usual ones" in head.notes[1] and "no rope_theta: using 10000" in head.notes[0]


def test_shards_are_put_together(facts, drafter, eagle3):
    tensors = load_file(eagle3 / "model.safetensors")
    (eagle3 / "model.safetensors").unlink()
    names = sorted(tensors)
    index = {}
    for part, own in enumerate((names[:5], names[5:])):
        index |= dict.fromkeys(own, f"part-{part}.safetensors")
        save_file({name: tensors[name] for name in own}, eagle3 / f"part-{part}.safetensors")
    listed = eagle3 / "model.safetensors.index.json"
    listed.write_text(json.dumps({"weight_map": index}))
    head = read_head(eagle3, facts)
    assert same(head.drafter, drafter)
    assert head.files.keys() == {"config.json", "part-0.safetensors", "part-1.safetensors"}
    save_file(
        {"norm.weight": tensors["norm.weight"], **{n: tensors[n] for n in names[:5]}}, eagle3 / "part-0.safetensors"
    )
    assert "holds norm.weight, which another file of the head holds too" in refused(eagle3, facts)
    (eagle3 / "part-1.safetensors").unlink()
    assert "lacks part-1.safetensors, which model.safetensors.index.json lists" in refused(eagle3, facts)
    listed.write_text(json.dumps({"weight_map": {"norm.weight": "../elsewhere.safetensors"}}))
    assert "lists '../elsewhere.safetensors'" in refused(eagle3, facts)
    listed.write_text("[]")
    assert "has no weight_map" in refused(eagle3, facts)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_weights_of_other_dtypes_come_to_the_last_bit(facts, eagle3, dtype):
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
    found = read_head(eagle3, facts).drafter
    assert torch.equal(found.token_ids, torch.arange(rows)) and found.t2d.all()
    edit_tensors(eagle3, lambda tensors: tensors.update({"lm_head.weight": head[:-1]}))
    assert f"lacks d2t, and lm_head.weight has {rows - 1} rows" in refused(eagle3, facts)


def test_the_targets_own_embedding_is_left_out_and_another_refused(facts, drafter, eagle3):
    own = facts.embedding.bfloat16()
    edit_tensors(eagle3, lambda tensors: tensors.update({"embed_tokens.weight": own}))
    assert "embed_tokens.weight equals the target's" in notes(eagle3, facts)
    other = own.clone()
    other[7, 3] += 0.5
    edit_tensors(eagle3, lambda tensors: tensors.update({"embed_tokens.weight": other}))
    line = refused(eagle3, facts)
    assert "comes with an embedding of its own (embed_tokens.weight differs from the target's by up to 0." in line
    edit_tensors(eagle3, lambda tensors: tensors.update({"embed_tokens.weight": own[:5]}))
    assert "comes with embed_tokens.weight [5, 32]" in refused(eagle3, facts)


# Tensors.


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_a_missing_or_misshapen_tensor_is_named(request, facts, layout, name):
    folder = request.getfixturevalue(layout)
    key = name.replace("midlayer.", "layers.0.") if layout == "speculators" else name
    edit_tensors(folder, lambda tensors: tensors.update({key: torch.zeros(3, 5)}))
    assert f"{name} is [3, 5], wanted [" in refused(folder, facts)
    edit_tensors(folder, lambda tensors: tensors.pop(key))
    assert f"lacks {name}" in refused(folder, facts)


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
    line = refused(eagle3, facts)
    assert why in line and name in line


def test_a_layer_under_two_names(facts, speculators):
    edit_tensors(speculators, lambda t: t.update({"midlayer.hidden_norm.weight": torch.zeros(32)}))
    assert "both as midlayer.* and as layers.0.*" in refused(speculators, facts)


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
def test_impossible_tensors(facts, eagle3, change, line):
    edit_tensors(eagle3, change)
    if "does not map" in line:  # and where t2d cannot tell
        edit_tensors(eagle3, lambda tensors: tensors.pop("t2d"))
    assert line in refused(eagle3, facts)


# Files.


def test_a_pickle_is_never_opened(facts, eagle3, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("opened"))
    (eagle3 / "model.safetensors").rename(eagle3 / "pytorch_model.bin")
    line = refused(eagle3, facts)
    assert "loads no pickle" in line and "weights_only=True" in line and "save_file" in line


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "header"])
def test_a_damaged_weight_file(facts, eagle3, damage):
    path = eagle3 / "model.safetensors"
    content = path.read_bytes()
    header = struct.pack("<Q", 1 << 40) + content[8:]
    path.write_bytes({"cut": content[:-100], "empty": b"", "header": header, "gone": b""}[damage])
    if damage == "gone":
        path.unlink()
    assert ("holds no model.safetensors" if damage == "gone" else "not a readable safetensors") in refused(
        eagle3, facts
    )


@pytest.mark.parametrize("content", [None, "", "{", "[]", "null"])
def test_a_damaged_config(facts, eagle3, content):
    path = eagle3 / "config.json"
    path.unlink() if content is None else path.write_text(content)
    refused(eagle3, facts)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_any_value_of_a_config_may_be_absurd(request, facts, layout):
    folder = request.getfixturevalue(layout)
    path = folder / "config.json"
    edit(folder, LAYER * (layout == "speculators"), layer_types=None, qkv_bias=None, quantization_config=None)
    complete = json.loads(path.read_text())
    read = 0
    wrong: list[str] = []
    for place in leaves(complete):
        for value in ABSURD:
            path.write_text(json.dumps(put(complete, place, value)))
            try:
                read_head(folder, facts)
                read += 1
            except ArtifactError as error:
                if "\n" in str(error):
                    wrong.append(f"{place} = {str(value)[:30]!r}: {str(error)[:200]!r}")
            except Exception as error:
                wrong.append(f"{place} = {str(value)[:30]!r}: {type(error).__name__} {str(error)[:200]!r}")
    assert not wrong, "\n".join(wrong)
    assert read > 100  # most keys are not ours to judge
    path.write_text("[" * 200_000 + "]" * 200_000)
    assert "nested too deeply" in refused(folder, facts)


def test_a_hub_id_fetches_json_and_safetensors_only(eagle3, monkeypatch):
    asked = []

    def fetch(name, **options):
        asked.append((name, options))
        return str(eagle3)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert fetch_head("owner/head", "v1") == (eagle3, eagle3.name)
    assert asked == [("owner/head", {"revision": "v1", "allow_patterns": ["*.json", "*.safetensors"]})]
    assert fetch_head(str(eagle3)) == (eagle3, None) and len(asked) == 1
    for path in ("./nothing", "/nothing", "nothing", "a/b/c"):
        with pytest.raises(ArtifactError, match="no folder and no hub id"):
            fetch_head(path)
    with pytest.raises(ArtifactError, match="revision= is for hub ids, but path="):
        fetch_head(str(eagle3), "v1")

    def fail(name, **options):
        raise OSError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ArtifactError, match=r"cannot download path=owner/head from the hub \(no route\)"):
        fetch_head("owner/head")


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
def test_what_we_do_not_run_is_refused(facts, eagle3, changes, line):
    edit(eagle3, **changes)
    assert line in refused(eagle3, facts)


def test_another_speculator_is_refused(facts, speculators):
    edit(speculators, speculators_model_type="dflash")
    assert "describes a 'dflash' speculator; wanted 'eagle3'" in refused(speculators, facts)


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
def test_a_rope_in_either_spelling(facts, eagle3, layer, expected):
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


def test_a_head_trained_in_a_window_is_told_of(facts, speculators):
    edit(speculators, LAYER, layer_types=["sliding_attention"], sliding_window=128)
    assert "trained with a sliding window of 128 tokens" in notes(speculators, facts)


# Which layers are read: [2, 3, 4] in our target of 7 layers.


@pytest.mark.parametrize(
    ("top", "nested", "fits"),
    [
        ([2, 3, 4], [1, 2, 3], True),  # what we write
        ([2, 3, 4], None, True),
        (None, [1, 2, 3], True),  # SGLang's, which adds one
        (None, None, True),
        ([2, 3, 4], [2, 3, 4], "contradicts itself"),
        ([1, 2, 3], [1, 2, 3], "contradicts itself"),
        (None, [2, 3, 4], "in eagle_config only, which means [3, 4, 5] to SGLang and [2, 3, 4] to vLLM"),
        (None, [2, 3, 5], "reads the inputs of layers [3, 4, 6]"),
        ([1, 3, 4], None, "reads the inputs of layers [1, 3, 4]"),
    ],
)
def test_layers_in_either_convention(facts, eagle3, top, nested, fits):
    edit(eagle3, **{IDS: top, "eagle_config": {IDS: nested} if nested else None})
    if fits is True:
        assert read_head(eagle3, facts).drafter.spec.tap_layers == (2, 3, 4)
        return
    line = refused(eagle3, facts)
    assert fits in line
    if "type layer_ids=" in line:
        agreed = [2, 3, 4] in (top, nested)
        if agreed:
            assert read_head(eagle3, facts, layer_ids=[2, 3, 4]).drafter.spec.tap_layers == (2, 3, 4)


def test_layers_that_are_typed_must_be_among_those_that_the_config_can_mean(facts, eagle3):
    edit(eagle3, **{IDS: [3, 4, 5], "eagle_config": None})
    assert "names the layers [3, 4, 5], not layer_ids=[2, 3, 4]" in refused(eagle3, facts, layer_ids=[2, 3, 4])
    edit(eagle3, **{IDS: None})
    assert read_head(eagle3, facts, layer_ids=[2, 3, 4]).drafter.spec.tap_layers == (2, 3, 4)
    assert "reads the inputs of layers [1, 2, 3]" in refused(eagle3, facts, layer_ids=[1, 2, 3])


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
    assert head.drafter.spec == drafter.spec and same(head.drafter, drafter)
    told = "SpecForge 0.2.0 also wrote it for heads trained without"
    assert (told in "\n".join(head.notes)) == (head.format == "eagle3")


@pytest.mark.parametrize("number", range(3))
def test_a_wrong_or_missing_norm_of_a_feature_is_named(facts, head_31, number):
    folder, name = head_31[0], f"fc_norm.{number}.weight"
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.ones(96)}))
    assert f"{name} is [96], wanted [32]" in refused(folder, facts)
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.full((32,), torch.nan)}))
    assert f"{name} holds numbers that are not finite" in refused(folder, facts)
    edit_tensors(folder, lambda tensors: tensors.pop(name))
    assert f"lacks {name}" in refused(folder, facts)


def test_a_head_without_its_flags_is_another_one_or_none(facts, head_31):
    folder, drafter = head_31
    edit(folder, norm_output=...)  # it has no tensors by which to tell
    assert read_head(folder, facts).drafter.spec == replace(drafter.spec, norm_output=False)
    edit(folder, fc_norm=False)
    assert "its config does not set fc_norm=true" in refused(folder, facts)


def test_flags_inside_the_layer_of_a_speculators_config_are_not_where_servers_look(facts, speculators):
    edit(speculators, norm_output=...)
    edit(speculators, LAYER, norm_output=True)
    assert "sets norm_output where SGLang and vLLM do not read it" in refused(speculators, facts)


# norm_before_residual: missing, it is true for vLLM and false for speculators.


def test_a_silent_speculators_config_needs_the_users_word(facts, speculators):
    edit(speculators, norm_before_residual=...)
    assert "which is true by default in vLLM and false in speculators" in refused(speculators, facts)
    for typed in (True, False):
        assert read_head(speculators, facts, norm_before_residual=typed).drafter.spec.norm_before_residual is typed


@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_a_config_that_speaks_is_believed(request, facts, layout):
    folder = request.getfixturevalue(layout)
    edit(folder, norm_before_residual=True)
    assert read_head(folder, facts).drafter.spec.norm_before_residual is True
    assert "has norm_before_residual=true" in refused(folder, facts, norm_before_residual=False)


def test_a_silent_eagle_config_means_false(facts, eagle3):
    edit(eagle3, norm_before_residual=...)
    assert read_head(eagle3, facts).drafter.spec.norm_before_residual is False


# Strangers' values in errors.

LONG = "x" * 100_000


@pytest.mark.parametrize("value", [LONG, [LONG], {LONG: LONG}, 10**4000], ids=["text", "list", "object", "number"])
@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_an_error_quotes_a_part_of_a_value(request, facts, layout, value):
    folder = request.getfixturevalue(layout)
    complete, refusals = json.loads((folder / "config.json").read_text()), 0
    for place in leaves(complete):
        (folder / "config.json").write_text(json.dumps(put(complete, place, value)))
        try:
            read_head(folder, facts)
        except ArtifactError as error:
            refusals += 1
            assert len(str(error)) < 800, (place, str(error)[:200])
    assert refusals > 10


def test_an_error_quotes_a_part_of_a_tensors_name(facts, eagle3):
    edit_tensors(eagle3, lambda tensors: tensors.update({LONG: torch.zeros(1)}))
    assert len(refused(eagle3, facts)) < 800
