"""drafter=auto continues a generalist that fits, and else says what new weights give."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from drafterforge.artifacts.folder import write_artifact
from drafterforge.artifacts.manifest import Manifest
from drafterforge.assembly.runs import is_generalist
from drafterforge.config.commands import QuickstartConfig, TrainDrafterConfig
from drafterforge.config.compose import load_config
from drafterforge.drafters.eagle3.checkpoint import save_drafter
from drafterforge.errors import ConfigError
from drafterforge.training.initialisation import choose_init, missing_tensor
from drafterforge.training.size import apply_size
from tests.models import TINY, tiny_drafter, tiny_model, tiny_target
from tests.runtime.test_mixtures_of_experts import MODELS
from tests.tiny import save_tiny_target
from tests.training.test_size import LLAMA_8B

NEW = ("warm", "full")


class Runs:
    """A folder of runs, and what is typed to train a drafter in it."""

    def __init__(self, folder) -> None:
        self.folder, self.target = folder, tiny_target()
        self.target.name, self.target.fingerprint = "tiny", "a" * 64

    def write(self, name: str, domain: str | None = "general", init: str = "warm", **identity: object) -> Manifest:
        path = self.folder / "tiny" / "drafters" / name
        config = {"drafter": {"kind": "eagle3", "init": init, "tuning": "full"}}
        config |= {"domain": domain} if domain else {}
        identity = {"target": "tiny", "target_fingerprint": self.target.fingerprint} | identity
        with write_artifact(path, kind="drafters", name=name, parents=[], config=config, **identity) as folder:
            save_drafter(folder, tiny_drafter(self.target))
        return Manifest.read(path)

    def choose(self, *typed: str) -> tuple[str, str]:
        """How the drafter starts, and its tuning."""
        return self.choose_with_steps(*typed)[:2]

    def choose_with_steps(self, *typed: str) -> tuple[str, str, int]:
        """How the drafter starts, its tuning, and the steps of its training."""
        hf = ["target=hf", "target.model=org/tiny", "target.name=tiny", f"runs_dir={self.folder}"]
        words = ["domain=kubernetes", "data=jsonl", "path=x.jsonl", "size=135m", *hf, *typed]
        config = apply_size("train_drafter", load_config("train_drafter", TrainDrafterConfig, words), words)
        drafter = choose_init(config, self.target).drafter
        return drafter.init, drafter.tuning, config.trainer.max_steps


@pytest.fixture
def runs(tmp_path) -> Runs:
    return Runs(tmp_path / "runs")


def test_a_generalist_that_fits_gets_a_lora(runs, capsys):
    runs.write("all")
    runs.write("general")
    assert runs.choose() == ("general", "lora")
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "kubernetes adds a LoRA to general" in line and "drafter=eagle3" in line


def test_layers_of_other_kinds_cannot_be_copied(tmp_path):
    folder = save_tiny_target(tmp_path / "tiny")
    config = AutoConfig.from_pretrained(folder)
    target = SimpleNamespace(config=config, folder=folder)
    assert missing_tensor(target) == ""
    weights = load_file(folder / "model.safetensors")
    del weights[f"model.layers.{config.num_hidden_layers - 1}.input_layernorm.weight"]  # as in OLMo-2
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert missing_tensor(target) == "input_layernorm.weight"
    config.hidden_activation = "gelu_pytorch_tanh"  # as in Gemma
    assert missing_tensor(target) == "SwiGLU MLP"


def test_a_head_of_others_is_a_generalist_too(runs):
    runs.write("theirs", domain=None)
    assert runs.choose() == ("theirs", "lora")


def test_without_a_generalist_new_weights_come_with_what_to_expect(runs, capsys):
    assert runs.choose() == NEW
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "kubernetes gets new weights, because no trained generalist fits" in line
    assert "expect 1.2 to 1.5 tokens per cycle" in line
    hint = "`drafterforge train-drafter domain=general target=hf target.model=org/tiny target.name=tiny runs_dir="
    assert hint in line


@pytest.mark.parametrize("typed", ["drafter=eagle3", "drafter.init=warm"])
def test_what_is_typed_is_taken_without_a_word(runs, capsys, typed):
    runs.write("general")
    assert runs.choose(typed) == NEW and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("domain=general", "a mixture of domains makes a generalist; drafter.init=all starts from all"),
        ("drafter.head=target", "drafter.head describes them; drafter.init=all starts from all"),
        ("drafter.draft_vocab_size=64", "drafter.draft_vocab_size describes them"),
    ],
)
def test_mixtures_and_keys_of_new_weights_give_new_weights(runs, capsys, typed, reason):
    runs.write("all")
    assert runs.choose(typed) == NEW and reason in capsys.readouterr().err


def test_the_draft_vocabulary_of_a_large_target_s_size_is_not_typed(runs, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    runs.write("general")
    large = [f"target.model={tmp_path}", "size=auto"]
    assert runs.choose(*large) == ("general", "lora")
    assert "draft_vocab_size=32000" in capsys.readouterr().err
    assert runs.choose(*large, "drafter.draft_vocab_size=64000") == NEW
    assert "drafter.draft_vocab_size describes them" in capsys.readouterr().err


def test_what_does_not_fit_is_no_generalist(runs):
    runs.write("sql", domain="sql")
    runs.write("other", target_fingerprint="b" * 64)
    runs.write("kubernetes", init="scratch")  # itself
    assert runs.choose() == NEW
    runs.write("general")
    runs.target.backbone = SimpleNamespace(taps=(0, 1, 3))
    assert runs.choose() == NEW


def test_a_drafter_that_was_trained_with_new_weights_before_keeps_its_settings(runs, capsys):
    runs.write("kubernetes", domain="kubernetes")
    runs.write("general")
    assert runs.choose() == NEW and capsys.readouterr().err == ""
    assert runs.choose("overwrite=true") == ("general", "lora")


@pytest.mark.parametrize("name", MODELS)
def test_a_mixture_of_experts_has_no_layer_to_start_from(runs, tmp_path, capsys, name):
    config_class, model_class, sizes = MODELS[name]
    runs.target.folder = tmp_path / "experts"
    model_class(config_class(**TINY, **sizes)).save_pretrained(runs.target.folder)
    random = ("scratch", "full")
    assert runs.choose() == random
    assert "they are random, because the target's last layer has no mlp.gate_proj.weight" in capsys.readouterr().err
    for kind in ("eagle3", "block"):
        with pytest.raises(ConfigError, match=r"has no mlp\.gate_proj\.weight; type drafter\.init=scratch"):
            runs.choose(f"drafter={kind}")
        assert runs.choose(f"drafter={kind}", "drafter.init=scratch") == random
    runs.write("kubernetes", domain="kubernetes", init="scratch")
    runs.write("general")
    assert runs.choose() == random and runs.choose("overwrite=true") == ("general", "lora")


def test_a_dense_target_has_a_layer_to_start_from(runs, tmp_path):
    runs.target.folder = tmp_path / "dense"
    tiny_model().save_pretrained(runs.target.folder)
    assert runs.choose() == runs.choose("drafter=eagle3") == NEW


def test_only_eagle3_leaves_its_start_open():
    typed = ["domain=sql", "drafter=causal_lm", "drafter.init=auto"]
    with pytest.raises(ConfigError, match=r"drafter.init=auto chooses the start of an EAGLE-3 drafter"):
        load_config("train_drafter", TrainDrafterConfig, typed)
    config = load_config("train_drafter", TrainDrafterConfig, ["domain=sql", "drafter=retrieval"])
    assert choose_init(config, None) is config
    assert not load_config("quickstart", QuickstartConfig, []).drafter.undecided


def test_the_settings_of_a_size_are_those_of_the_start_that_is_chosen(runs, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    large = [f"target.model={tmp_path}", "size=auto"]
    new, lora = (*NEW, 10000), ("theirs", "lora", 600)
    assert runs.choose_with_steps(*large) == new
    runs.write("theirs", domain=None)
    assert runs.choose_with_steps(*large) == lora
    assert runs.choose_with_steps(*large, "drafter.fc_norm=true") == new
    runs.write("kubernetes", domain="kubernetes")
    assert runs.choose_with_steps(*large) == new  # it was trained before
    assert runs.choose_with_steps(*large, "overwrite=true") == lora
    assert runs.choose_with_steps(*large, "size=8b", "name=more") == lora
    assert "those of a LoRA expert" not in capsys.readouterr().err
    runs.target.fingerprint = "b" * 64
    assert runs.choose_with_steps(*large, "name=more") == (*NEW, 600)
    assert "a size picked those of a LoRA expert; drafter=eagle3 picks" in capsys.readouterr().err


def test_an_adapter_called_general_is_no_generalist(runs):
    manifest = runs.write("general")
    folder = runs.folder / "tiny" / "drafters" / "general"
    assert is_generalist(folder) and manifest.name == "general"
    (folder / "adapter").mkdir()
    assert not is_generalist(folder)
    (folder / "manifest.json").write_text("{")
    assert not is_generalist(folder)
