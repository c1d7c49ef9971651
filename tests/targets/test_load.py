"""A target on disk: opening, errors, and the fingerprint that identifies it."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from drafterforge.config.target import TargetConfig
from drafterforge.errors import ArtifactError, ConfigError
from drafterforge.kernels import native
from drafterforge.targets.device import choose_device, choose_dtype, describe_device
from drafterforge.targets.fingerprint import fingerprint, missing_weights
from drafterforge.targets.lean import LeanBackbone
from drafterforge.targets.load import load_target, locate_target
from drafterforge.targets.modules import ModulesBackbone
from tests.tiny import build_tokenizer, save_tiny_target


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_tiny_target(tmp_path_factory.mktemp("target") / "Tiny-Llama")


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(saved, tmp_path / "Tiny-Llama")


def config_of(folder, **changes) -> TargetConfig:
    return TargetConfig(**{"name": "", "source": "hf", "model": str(folder), "dtype": "float32", **changes})


def edit_config(folder, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# Opening.


def test_a_folder_becomes_a_target(saved):
    target = load_target(config_of(saved))
    assert (target.name, target.folder, target.dtype) == ("tiny-llama", saved, torch.float32)
    assert target.fingerprint == fingerprint(saved) and len(target.fingerprint) == 32
    assert target.eos_ids == {build_tokenizer().eos_token_id}
    assert target.max_positions == 2048 and target.head_weight.shape == (target.config.vocab_size, 32)
    assert isinstance(target.backbone, LeanBackbone)
    assert not any(p.requires_grad for p in (target.head_weight, target.backbone.embedding))


def test_latent_attention_is_refused_in_one_line(folder):
    edit_config(folder, kv_lora_rank=8)
    with pytest.raises(ConfigError, match=r"with latent attention \(MLA\), which is not supported yet"):
        load_target(config_of(folder))


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3"])
def test_every_family_opens(tmp_path, family):
    target = load_target(config_of(save_tiny_target(tmp_path / family, family)))
    assert isinstance(target.backbone, LeanBackbone) and target.name == family


def test_the_name_and_the_forward_path_can_be_typed(saved):
    target = load_target(config_of(saved, name="mine", forward="modules", dtype="bfloat16"))
    assert target.name == "mine" and isinstance(target.backbone, ModulesBackbone)
    assert target.dtype == torch.bfloat16 and target.backbone.embedding.dtype == torch.bfloat16


def test_weights_in_several_files_are_the_same_model(saved, tmp_path):
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(saved).save_pretrained(tmp_path / "many", max_shard_size="20KB")
    build_tokenizer().save_pretrained(tmp_path / "many")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    single, many = load_target(config_of(saved)), load_target(config_of(tmp_path / "many"))
    tokens, positions = torch.tensor([[3, 4, 5]]), torch.arange(3)[None]
    assert torch.equal(single.forward(tokens, positions, None)[0], many.forward(tokens, positions, None)[0])


def test_opening_prints_nothing(saved, capfd):
    load_target(config_of(saved))
    assert capfd.readouterr() == ("", "")


# A target that cannot be opened is one line that names the folder.


def refusal(config: TargetConfig) -> str:
    with pytest.raises((ArtifactError, ConfigError)) as caught:
        load_target(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_folder_is_named(tmp_path):
    assert "nowhere is not a folder; expected one with config.json" in refusal(config_of(tmp_path / "nowhere"))
    assert "./nowhere is not a folder" in refusal(config_of("./nowhere"))


def test_a_missing_model_setting_is_named():
    assert "type target.model=HUB_ID or target.model=FOLDER" in refusal(config_of(""))


def test_a_hub_id_that_cannot_be_downloaded_is_one_line(monkeypatch):
    import huggingface_hub

    def down(*args, **kwargs):
        raise OSError("no route\nto the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", down)
    line = refusal(config_of("someone/model"))
    assert line == "could not get target.model=someone/model from the hub (no route); a local folder works too"


def test_a_hub_id_is_fetched_at_its_revision_without_pickles(monkeypatch, saved):
    import huggingface_hub

    download = {}

    def snapshot(model, **options):
        download.update(model=model, **options)
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    name, folder = locate_target(config_of("someone/Model", revision="v1"))
    assert (name, folder, download["model"], download["revision"]) == ("model", saved, "someone/Model", "v1")
    assert not any(pattern.endswith((".bin", ".pt", ".py", "*")) for pattern in download["allow_patterns"])


@pytest.mark.parametrize(("name", "expected"), [("config.json", "config.json"), ("model.safetensors", "*.safetensors")])
def test_a_missing_file_is_named(folder, name, expected):
    (folder / name).unlink()
    assert f"{folder} has no {expected}" in refusal(config_of(folder))


def test_a_tokenizer_without_a_sensible_length_is_refused(folder):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": []}))
    assert "its tokenizer has model_max_length=[], expected a number" in refusal(config_of(folder))


@pytest.mark.parametrize("length", [0, 7, 200, 0.5, -1])
def test_truncated_weights_are_refused(folder, length):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(length * len(content)) if isinstance(length, float) else length])
    assert f"{folder} cannot be loaded as a causal language model" in refusal(config_of(folder))


def test_a_tensor_that_is_missing_is_not_replaced_by_random_values(folder, capfd):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lacks model.layers.1.mlp.up_proj.weight and 1 more tensors" in refusal(config_of(folder))
    assert capfd.readouterr() == ("", "")


def test_a_tensor_of_another_shape_is_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.zeros(7)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "describes model.norm.weight with shape [32], but its stored shape is [7]" in refusal(config_of(folder))


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_implementation": "someone/kernel"},
        {"_attn_implementation": "someone/kernel"},
        {"_attn_implementation_internal": "someone/kernel"},
        {"experts_implementation": "someone/kernel"},
        {"auto_map": {"AutoConfig": "code.Mine", "AutoModelForCausalLM": "code.Mine"}},
        {"transformers_weights": "other.safetensors"},
        {"num_labels": 10**9},
        {"output_attentions": True},
        {"get_text_config": 5},
        {"unk_token_id": 3},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_config_names_no_code_no_kernels_and_no_files(saved, folder, changes):
    edit_config(folder, **changes)
    target, plain = load_target(config_of(folder)), load_target(config_of(saved))
    tokens, positions = torch.tensor([[3, 4, 5]]), torch.arange(3)[None]
    assert torch.equal(target.forward(tokens, positions, None)[0], plain.forward(tokens, positions, None)[0])
    assert target.config._attn_implementation == plain.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_hidden_layers": 10**9}, "has num_hidden_layers=1000000000, but the safetensors files beside it hold 7"),
        ({"num_hidden_layers": 8}, "has num_hidden_layers=8, but the safetensors files beside it hold 7 layers"),
        (
            {"hidden_size": 64},
            "describes model.embed_tokens.weight with shape [259, 64], but its stored shape is [259, 32]",
        ),
        (
            {"num_key_value_heads": 3, "head_dim": 8},
            "describes model.layers.0.self_attn.k_proj.weight with shape [24, 32]",
        ),
        ({"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 2}, ""),
        (
            {"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 1},
            "expected a multiple of the key-value heads, an even width",
        ),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised weights are not supported"),
        ({"model_type": "x" * 100_000}, "which transformers does not know"),
    ],
    ids=str,
)
def test_a_config_of_other_sizes_than_the_weights_is_refused(folder, changes, expected):
    edit_config(folder, **changes)
    if expected:
        line = refusal(config_of(folder))
        assert expected in line and len(line) < 500
    else:
        load_target(config_of(folder))


def test_an_adapter_beside_the_weights_is_refused(folder):
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/else"}')
    assert "holds adapter_config.json, which names another model" in refusal(config_of(folder))


def test_too_few_layers_are_refused(tmp_path):
    folder = save_tiny_target(tmp_path / "short", num_hidden_layers=3)
    assert "the target has 3 layers; EAGLE-3 features need at least 4" in refusal(config_of(folder))


def test_an_unsupported_lean_path_is_refused(tmp_path):
    folder = save_tiny_target(tmp_path / "gelu", hidden_act="gelu")
    line = refusal(config_of(folder, forward="lean"))
    assert "target.forward=lean cannot run gelu: hidden_act='gelu'; type target.forward=auto" in line
    assert isinstance(load_target(config_of(folder)).backbone, ModulesBackbone)


# Fingerprints.


def test_a_fingerprint_is_a_function_of_the_files(saved, folder):
    assert fingerprint(folder) == fingerprint(saved)


@pytest.mark.parametrize(
    "changes", [{"dtype": "float16"}, {"torch_dtype": "float16"}, {"use_cache": False}, {"transformers_version": "9"}]
)
def test_a_fingerprint_does_not_depend_on_how_the_model_was_saved(saved, folder, changes):
    edit_config(folder, **changes)
    assert fingerprint(folder) == fingerprint(saved)


@pytest.mark.parametrize("changes", [{"rms_norm_eps": 1e-3}, {"max_position_embeddings": 99}])
def test_a_fingerprint_depends_on_the_config(saved, folder, changes):
    edit_config(folder, **changes)
    assert fingerprint(folder) != fingerprint(saved)


def test_a_copy_of_the_weights_for_other_programs_does_not_count(saved, folder):
    shutil.copyfile(folder / "model.safetensors", folder / "consolidated.safetensors")  # as Mistral publishes
    assert fingerprint(folder) == fingerprint(saved)


def test_an_unfinished_download_is_noticed(folder):
    assert missing_weights(folder) == ""
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert missing_weights(folder) == "model-00001-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text("{")
    assert missing_weights(folder) == "whole model.safetensors.index.json"
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").unlink()
    assert missing_weights(folder) == "*.safetensors"


def test_a_fingerprint_depends_on_the_tokenizer(saved, folder):
    path = folder / "tokenizer.json"
    path.write_text(path.read_text() + " ")
    assert fingerprint(folder) != fingerprint(saved)


@pytest.mark.parametrize("offset", [0, 0.25, 0.999])
def test_a_fingerprint_depends_on_the_weights(saved, folder, offset):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[int(offset * len(content))] ^= 1
    path.write_bytes(content)
    assert fingerprint(folder) != fingerprint(saved)


def test_large_weights_are_sampled_over_their_whole_length(tmp_path):
    for name, seed in (("one", 0), ("other", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        torch.manual_seed(seed)
        head, tail = torch.zeros(1 << 20), torch.randn(1 << 18)
        save_file({"a": head, "b": tail}, tmp_path / name / "model.safetensors")
    assert fingerprint(tmp_path / "one") != fingerprint(tmp_path / "other")


# Device and dtype.


def test_device_and_dtype_are_chosen_for_the_machine():
    device = choose_device("auto")
    assert device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_dtype("float64", device) == torch.float64
    assert "threads" in describe_device(torch.device("cpu"))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("has", [True, False])
def test_automatic_dtype_follows_the_hardware_and_the_kernels(monkeypatch, has, compiled):
    monkeypatch.setattr("drafterforge.targets.device.computes_bfloat16", lambda kind: has)
    monkeypatch.setattr("drafterforge.targets.device.decodes_with_matrix_unit", lambda: False)
    monkeypatch.setattr(native, "library", lambda: object() if compiled else None)
    cpu = torch.device("cpu")
    assert choose_dtype("auto", cpu) == (torch.bfloat16 if has or compiled else torch.float32)
    assert ("compiled kernels" in describe_device(cpu)) is compiled


def test_an_unknown_or_missing_device_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"target\.device='abacus' is not a device"):
        choose_device("abacus")
    with pytest.raises(ConfigError, match=r"target\.device=mps is not supported; type auto, cpu, cuda"):
        choose_device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="finds no GPU; type target"):
        choose_device("cuda:1")


# Taps.


@pytest.mark.parametrize("forward", ["lean", "modules"])
def test_features_come_from_the_configured_layers(saved, forward):
    model = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32)
    tokens = torch.tensor([[5, 7, 11, 13]])
    with torch.no_grad():
        states = model(tokens, output_hidden_states=True).hidden_states
    target = load_target(config_of(saved, forward=forward, taps=[0, 1, 3]))
    features = target.forward(tokens, torch.arange(4)[None], None)[1]
    torch.testing.assert_close(features, torch.cat([states[0], states[1], states[3]], dim=-1))
    assert target.features_fingerprint == f"{target.fingerprint}@0,1,3"


def test_the_usual_layers_need_no_name(saved):
    usual = load_target(config_of(saved))
    named = load_target(config_of(saved, taps=list(usual.backbone.taps)))
    assert named.features_fingerprint == usual.features_fingerprint == usual.fingerprint


def test_layer_ids_beyond_the_model_are_refused(saved):
    with pytest.raises(ConfigError, match=r"target.taps=\[1, 2, 99\] names layer 99, but the target has layers 0 to"):
        load_target(config_of(saved, taps=[1, 2, 99]))
    with pytest.raises(ConfigError, match=r"target\.taps must name at most 64 layers, got 65"):
        config_of(saved, taps=[1] * 65)
