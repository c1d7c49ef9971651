"""A target spread over devices gives the answers and features of the same target on one device."""

from __future__ import annotations

import pytest
import torch

from drafterforge.cli import main
from drafterforge.config.target import TargetConfig
from drafterforge.errors import ConfigError
from drafterforge.runtime.engine import Engine
from drafterforge.targets.answer import BatchAnswerer
from drafterforge.targets.capture import FeatureCapture
from drafterforge.targets.load import load_target
from drafterforge.targets.modules import ModulesBackbone
from drafterforge.targets.spread import SpreadCache, describe, fill, parse_bytes, running_devices
from tests.models import tiny_target
from tests.tiny import save_tiny_target

PROMPTS = [[3, 4, 5, 6, 7][: 1 + index % 5] for index in range(11)]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_target(tmp_path_factory.mktemp("target") / "tiny")


def load(folder, **changes):
    return load_target(TargetConfig(name="tiny", source="hf", model=str(folder), dtype="float32", **changes))


@pytest.mark.parametrize("memory", [{}, {"cpu": "120KB"}, {"cpu": "60KB"}], ids=["fits", "half on disk", "all on disk"])
def test_answers_and_features_equal_those_of_one_device(folder, memory, capsys):
    on_device = load(folder, forward="modules")
    capsys.readouterr()
    spread = load(folder, device_map="auto", max_memory=memory)
    line = capsys.readouterr().err
    assert "decoding with drafters stays on one device" in line and ("on disk" in line) == bool(memory)
    assert spread.is_spread and not on_device.is_spread and spread.fingerprint == on_device.fingerprint
    assert BatchAnswerer(spread, 4)(PROMPTS, 9, 0) == BatchAnswerer(on_device, 4)(PROMPTS, 9, 0)
    for ours, theirs in zip(FeatureCapture(spread)(PROMPTS), FeatureCapture(on_device)(PROMPTS), strict=True):
        torch.testing.assert_close(ours.features, theirs.features)
        torch.testing.assert_close(ours.states, theirs.states)
        assert torch.equal(ours.argmax, theirs.argmax)
    assert torch.equal(spread.head_weight, on_device.head_weight)


def test_a_cache_in_parts_is_the_cache_of_all_layers(monkeypatch):
    target = tiny_target(forward="modules")
    on_device = BatchAnswerer(target, 4)(PROMPTS, 9, 0)
    parts = [3, 2, 2]  # runs of layers on devices of their own; here all of them are the CPU

    def new_cache(self, batch):
        cache = SpreadCache([CPU] * 7, batch, self.num_key_heads, self.width, torch.float32)
        assert len(cache.parts) == 1
        cache.parts = [
            type(cache.parts[0])(n, batch, self.num_key_heads, self.width, torch.float32, CPU) for n in parts
        ]
        cache.places = [(part, index) for part, count in enumerate(parts) for index in range(count)]
        return cache

    monkeypatch.setattr(ModulesBackbone, "new_cache", new_cache)
    assert BatchAnswerer(target, 4)(PROMPTS, 9, 0) == on_device


def test_layers_fill_the_devices_in_order_and_the_first_also_holds_the_rest():
    budgets = [("cuda:1", 30), ("cuda:0", 20), ("cpu", 10), ("disk", float("inf"))]
    devices = fill([10] * 6, 10, budgets)
    assert devices == ["cuda:1"] * 2 + ["cuda:0"] * 2 + ["cpu", "disk"]
    assert fill([10], 40, budgets) == ["cuda:0"]
    with pytest.raises(ConfigError, match="do not hold the 2 layers"):
        fill([10] * 2, 0, [("cpu", 15)])
    named = {"lm_head": "cuda:1"} | {f"model.layers.{index}": device for index, device in enumerate(devices)}
    assert describe(named) == "2 layers on cuda:1, 2 layers on cuda:0, 1 layers on cpu, 1 layers on disk"
    main_device = torch.device("cuda:1")
    assert running_devices(named, main_device) == [torch.device(f"cuda:{i}") for i in (1, 1, 0, 0, 1, 1)]


def test_sizes_are_read_as_they_are_written():
    assert (parse_bytes("cpu", "2GiB"), parse_bytes("cpu", "1.5 MB"), parse_bytes("cpu", "7B")) == (2**31, 1.5e6, 7)
    with pytest.raises(ConfigError, match=r"target\.max_memory\.cpu must be a size such as 20GiB"):
        parse_bytes("cpu", "much")


def test_decoding_refuses_a_spread_target_in_one_line(folder, capsys):
    with pytest.raises(ConfigError, match="decoding stays on one"):
        Engine(load(folder, device_map="auto"))
    capsys.readouterr()
    typed = ["target=hf", f"target.model={folder}", "target.device_map=auto"]
    for command in ("serve", "generate", "eval", "calibrate"):
        assert main([command, *typed]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "decoding stays on one" in err


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigError, match="device_map"):
        TargetConfig(max_memory={"cpu": "1GiB"})
    with pytest.raises(ConfigError, match="one device"):
        TargetConfig(device_map="auto", forward="lean")


@pytest.mark.slow
def test_a_drafter_is_trained_from_a_spread_target(folder, tmp_path, capsys):
    typed = ["domain=sql", "target=hf", f"target.model={folder}", "target.dtype=float32", "experiment=smoke"]
    spread = ["target.device_map=auto", "target.max_memory={cpu:120KB}", f"runs_dir={tmp_path}"]
    assert main(["train-drafter", *typed, *spread]) == 0
    assert "not decoded" in capsys.readouterr().out
