"""The settings that a target's size picks, and what wins over them."""

from __future__ import annotations

import json

import pytest

from drafterforge.cli import COMMANDS
from drafterforge.cli.run import _sized
from drafterforge.config.compose import load_config
from drafterforge.errors import ConfigError
from drafterforge.pipelines.prepare_data import source_flags
from drafterforge.training.size import LIMITS, apply_size, size_of
from tests.data.prompt_files import write_lines

LLAMA_8B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}


@pytest.fixture
def folder(tmp_path):
    """The config of Llama-3.1-8B, without weights."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return tmp_path


def settings(folder, *typed: str, command: str = "train-drafter"):
    overrides = ["domain=general", "target=hf", f"target.model={folder}", *typed]
    row = COMMANDS[command]
    return apply_size(row.name, load_config(row.name, row.config, overrides), overrides)


@pytest.mark.parametrize(
    ("billions", "size"), [(0.135, "135m"), (1.2, "1b"), (3.9, "1b"), (8.0, "8b"), (32.8, "32b"), (70.6, "70b")]
)
def test_a_size_is_picked_by_the_number_of_weights(billions, size):
    assert size_of(int(billions * 1e9)) == size


def test_a_target_of_8b_inherits_nothing_that_was_tuned_on_135m(folder, capsys):
    config = settings(folder)
    assert (config.trainer.lr, config.trainer.ttt_steps, config.drafter.draft_vocab_size) == (1e-4, 7, 32000)
    assert config.trainer.tokens_per_batch * config.trainer.accumulate == 32768
    assert config.data.max_prompt_tokens + config.data.max_new_tokens == 4096 and config.data.features == "online"
    out = capsys.readouterr().err
    assert out.count("\n") == 1 and "size=8b, because" in out and "8.0 billion weights" in out
    assert "trainer.lr=0.0001" in out and "size=135m leaves them out" in out


def test_what_is_typed_wins_and_then_the_experiment(folder, capsys):
    config = settings(folder, "trainer.lr=3e-4", "experiment=public_8b")
    assert (config.trainer.lr, config.trainer.max_steps, config.trainer.ttt_steps) == (3e-4, 30000, 7)
    assert "trainer.lr" not in capsys.readouterr().err
    assert settings(folder, "data=recorded", "path=x").data.features == "cached"
    assert settings(folder, "data.stream=x").data.features == "cached"


def test_a_typed_size_is_used_and_nothing_is_printed(folder, capsys):
    overrides = ["domain=sql", "target=hf", f"target.model={folder}", "size=135m"]
    row = COMMANDS["train-drafter"]
    config = load_config(row.name, row.config, overrides)
    assert apply_size(row.name, config, overrides) is config and capsys.readouterr().err == ""
    assert load_config(row.name, row.config, ["domain=sql", "size=8b"]).trainer.lr == 1e-4


@pytest.mark.parametrize("typed", [["domain=sql", "drafter=lora"], ["domain=sql", "drafter=auto"]])
def test_an_expert_takes_fewer_steps_and_a_higher_rate_and_its_answers_fit(folder, monkeypatch, typed):
    names: list[str] = []
    monkeypatch.setattr("drafterforge.training.size.generalists", lambda *_: names)
    if "drafter=auto" in typed:
        assert settings(folder, *typed).trainer.max_steps == 10000
    names.append("general")
    config = settings(folder, *typed)
    assert (config.trainer.lr, config.trainer.max_steps, config.trainer.tokens_per_batch) == (1e-3, 600, 8192)
    assert config.drafter.draft_vocab_size == 32000 and config.data.num_train == 5000
    assert settings(folder, "domain=sql", command="prepare-data").data == config.data
    assert settings(folder, "drafter=auto").trainer.max_steps == 10000  # of all domains


def test_micro_batches_are_shared_as_the_size_says(folder, capsys):
    overrides = ["domain=general", "target=hf", f"target.model={folder}", "trainer.devices=4"]
    row = COMMANDS["train-drafter"]
    config = _sized(load_config(row.name, row.config, overrides), row, overrides)
    assert config.trainer.accumulate == 4 and config.trainer.tokens_per_batch == 8192
    overrides = ["domain=general", "trainer.devices=4"]
    with pytest.raises(ConfigError, match=r"4 devices cannot share .* type trainer\.accumulate=4"):
        _sized(load_config(row.name, row.config, overrides), row, overrides)


def test_the_answers_are_as_long_whichever_command_makes_them(folder):
    assert settings(folder, command="prepare-data").data == settings(folder).data


def test_the_embedded_target_keeps_the_defaults():
    row = COMMANDS["train-drafter"]
    config = load_config(row.name, row.config, ["domain=sql"])
    assert apply_size(row.name, config, ["domain=sql"]) is config


def test_a_kind_without_a_draft_vocabulary_takes_the_rest(folder):
    assert settings(folder, "drafter=causal_lm").trainer.lr == 1e-4


def test_every_size_is_a_choice():
    row = COMMANDS["train-drafter"]
    rates = [load_config(row.name, row.config, ["domain=sql", f"size={s}"]).trainer.lr for s in (*LIMITS, "70b")]
    assert rates == sorted(rates, reverse=True) and rates[0] > rates[-1]


def test_a_target_of_unknown_size_keeps_the_defaults(folder):
    (folder / "config.json").write_text(json.dumps({"hidden_size": 4}))
    assert settings(folder).trainer.lr == 1e-3
    (folder / "config.json").unlink()
    assert settings(folder).trainer.lr == 1e-3


def test_public_conversations_are_read_from_a_local_folder(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    from drafterforge.data.prompts import load_prompts

    rows = [
        {"conversations": [{"from": "human", "value": f"ask {i}"}, {"from": "gpt", "value": f"say {i}"}]}
        for i in range(400)
    ]
    (tmp_path / "sharegpt").mkdir()
    write_lines(tmp_path / "sharegpt" / "train.jsonl", rows)
    row = COMMANDS["prepare-data"]
    typed = ["domain=general", "data=sharegpt", f"dataset={tmp_path / 'sharegpt'}", "experiment=public_8b"]
    config = load_config(row.name, row.config, typed)
    prompts = load_prompts(config.data, config.domain, 0)
    assert sum(map(len, prompts.values())) == 400 and prompts["train"][0].messages[0]["content"].startswith("ask")
    assert config.data.answers == "target" and config.data.num_train == 120000


def test_a_typed_size_is_that_of_experts_where_a_lora_is_trained(folder, capsys):
    config = settings(folder, "domain=sql", "drafter=lora", "size=8b", "trainer.val_every=7")
    assert (config.trainer.lr, config.trainer.max_steps, config.trainer.val_every) == (1e-3, 600, 7)
    assert "size=8b-expert, because a LoRA expert takes fewer steps at a higher rate" in capsys.readouterr().err
    assert settings(folder, "domain=sql", "drafter=eagle3", "size=8b").trainer.max_steps == 10000
    assert settings(folder, "domain=sql", "drafter=lora", "size=1b-expert").trainer.max_steps == 600
    assert capsys.readouterr().err == ""


def test_the_next_command_reads_the_features_that_prepare_data_captured_and_captures_none_else(folder):
    def flags(*typed: str) -> str:
        return source_flags(settings(folder, *typed, command="prepare-data"))

    assert flags("data.features=cached") == " data.features=cached"
    assert flags("data=recorded", "path=my records") == " data=recorded path='my records'"
    assert flags() == ""  # online, as `train-drafter` picks
    assert flags("size=135m") == " data.features=cached"
    assert flags("data.features=online") == ""
    (folder / "config.json").unlink()  # the defaults, which cache features
    assert (flags(), flags("data.features=online")) == ("", " data.features=online")
