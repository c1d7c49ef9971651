"""Estimates are arithmetic on the target's config and the device's rates; every figure here is worked out by hand."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import MixtralConfig, Qwen2MoeConfig, Qwen3MoeConfig

from drafterforge.cli.overrides import read_config
from drafterforge.config.commands import PrepareDataConfig, TrainDrafterConfig
from drafterforge.config.data import DataConfig
from drafterforge.config.drafter import Eagle3DrafterConfig
from drafterforge.config.evaluation import EvalConfig
from drafterforge.config.trainer import TrainerConfig
from drafterforge.errors import ArtifactError
from drafterforge.evaluation import stage_trials
from drafterforge.evaluation.fitting import Fitter, scaled, with_settings
from drafterforge.evaluation.planning import (
    DeviceRates,
    Devices,
    Room,
    Stage,
    Workload,
    duration,
    estimate_stages,
    feature_bytes,
    measure_device,
    peak_disk,
    size,
)
from drafterforge.evaluation.trial_workload import assumed_workload
from drafterforge.targets.shape import ModelShape

TOY = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 100,
    "tie_word_embeddings": True,
}
SHAPE = ModelShape(hidden=8, layers=2, heads=4, key_heads=2, head_dim=2, intermediate=16, vocab=100, tied=True)
CONFIG = TrainDrafterConfig(
    data=DataConfig(num_train=6, num_val=2, num_test=2, max_prompt_tokens=6, max_new_tokens=10, batch_size=4),
    trainer=TrainerConfig(
        max_steps=10, val_every=5, tokens_per_batch=100, accumulate=2, ttt_steps=3, checkpoint_steps=False, loss_chunk=5
    ),
    drafter=Eagle3DrafterConfig(draft_vocab_size=50),
    eval=EvalConfig(num_prompts=2, max_new_tokens=7),
)
WORK = Workload({"train": [6] * 6, "val": [6] * 2, "test": [6] * 2}, 10.0, "10 tokens")
SLOW = DeviceRates(bytes_per_s=1e4, multiplications_per_s=1e4, source="toy rates")
SINGLE_DEVICE = Devices()
ROOMY = Room(memory=1e12, disk=1e12)


def stages(
    cfg: PrepareDataConfig = CONFIG, rates: DeviceRates = SLOW, work: Workload = WORK, devices: Devices = SINGLE_DEVICE
) -> dict[str, Stage]:
    return {stage.name: stage for stage in estimate_stages(cfg, SHAPE, rates, 2, work, devices)}


def with_data(**changes: object) -> TrainDrafterConfig:
    return replace(CONFIG, data=replace(CONFIG.data, **changes))


def test_a_config_json_is_enough(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TOY))
    assert ModelShape.read(path) == SHAPE
    path.write_text(json.dumps({"text_config": TOY | {"head_dim": 3}, "tie_word_embeddings": False}))
    assert (ModelShape.read(path).head_dim, ModelShape.read(path).tied) == (3, False)
    sparse = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": sparse}))  # the rest are its class's defaults
    assert 3e9 < ModelShape.read(path).num_weights < 5e9
    del (content := dict(TOY))["num_attention_heads"]
    path.write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match="has no num_attention_heads"):
        ModelShape.read(path)


@pytest.mark.parametrize(
    "change",
    [{"text_config": 3}, {"num_attention_heads": "four"}, {"num_key_value_heads": "x" * 5000}, {"head_dim": 10**400}],
    ids=lambda change: next(iter(change)),
)
def test_a_size_that_is_no_number_is_refused(tmp_path, change):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TOY | change))
    with pytest.raises(ArtifactError, match="wanted the config of a decoder of the Llama kind") as caught:
        ModelShape.read(path)
    assert len(str(caught.value)) < len(str(path)) + 200


def test_weights_are_counted():
    # q and o: 8 x 8, k and v: 8 x 4, three of 8 x 16; the embedding: 100 x 8
    assert SHAPE.layer_numbers() == 64 + 64 + 32 + 32 + 3 * 128 and SHAPE.num_weights == 2 * 576 + 800
    # fc: 24 x 8; q, k and v read two states; a head of 50 rows
    assert SHAPE.drafter_weights(50, own_head=True) == 192 + (2 * (64 + 32 + 32) + 64 + 384) + 400
    assert SHAPE.drafter_weights(50, own_head=False) == 896
    assert SHAPE.cache_bytes(2) == 2 * 2 * 2 * 2 * 2 and SHAPE.cache_bytes(2, layers=1) == 16


def test_the_shipped_target_s_weights_are_within_a_percent_of_its_name():
    smollm2 = ModelShape(576, 30, 9, 3, 64, 1536, 49152, tied=True)
    assert smollm2.num_weights == pytest.approx(134.5e6, rel=0.01)


MIXTURES = {  # published sizes, in billions of weights: all, and those that compute a token
    "Mixtral-8x7B": (
        MixtralConfig(
            hidden_size=4096,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            intermediate_size=14336,
            vocab_size=32000,
            num_local_experts=8,
            num_experts_per_tok=2,
        ),
        46.7,
        12.9,
    ),
    "Qwen3-30B-A3B": (
        Qwen3MoeConfig(
            hidden_size=2048,
            num_hidden_layers=48,
            num_attention_heads=32,
            num_key_value_heads=4,
            head_dim=128,
            intermediate_size=6144,
            moe_intermediate_size=768,
            num_experts=128,
            num_experts_per_tok=8,
            vocab_size=151936,
        ),
        30.5,
        3.3,
    ),
    "Qwen1.5-MoE-A2.7B": (
        Qwen2MoeConfig(
            hidden_size=2048,
            num_hidden_layers=24,
            num_attention_heads=16,
            num_key_value_heads=16,
            intermediate_size=5632,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
            num_experts=60,
            num_experts_per_tok=4,
            vocab_size=151936,
        ),
        14.3,
        2.7,
    ),
}


@pytest.mark.parametrize(("config", "all_weights", "active"), MIXTURES.values(), ids=MIXTURES)
def test_all_experts_of_a_mixture_are_counted(tmp_path, config, all_weights, active):
    config.save_pretrained(tmp_path)
    shape = ModelShape.read(tmp_path / "config.json")
    assert shape.num_weights == pytest.approx(1e9 * all_weights, rel=0.01)
    assert shape.active_weights == pytest.approx(1e9 * active, rel=0.03)


@pytest.mark.parametrize(
    ("change", "mixtures"),
    [
        ({"mlp_only_layers": [0]}, 1),
        ({"first_k_dense_replace": 1}, 1),
        ({"decoder_sparse_step": 2}, 1),
        ({"num_experts": 1}, 0),
        ({}, 2),
    ],
    ids=str,
)
def test_layers_without_a_mixture_are_not_counted_as_one(tmp_path, change, mixtures):
    path = tmp_path / "config.json"
    mixture = {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "n_shared_experts": 1}
    path.write_text(json.dumps(TOY | mixture | change))
    shape = ModelShape.read(path)
    # four experts and a shared one, each of 8, in place of an MLP of 16
    assert shape.num_weights == SHAPE.num_weights + mixtures * 3 * 8 * (5 * 8 - 16)
    assert shape.active_weights == SHAPE.num_weights + mixtures * 3 * 8 * (2 * 8 - 16)


def test_a_mixture_s_sizes_must_be_numbers(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TOY | {"num_experts": "many"}))
    with pytest.raises(ArtifactError, match="has num_experts='many'; wanted a whole number"):
        ModelShape.read(path)


def test_features_take_their_bytes_twice_until_all_are_stored():
    five = replace(CONFIG.target, taps=[1, 2, 3, 4, 5])
    assert feature_bytes(CONFIG.target, 8) == 68 and feature_bytes(five, 8) == 100
    features = stages()["features"]
    assert (features.tokens, features.lasting, features.disk) == (8 * 16, 8 * 16 * 68, 8 * 16 * 68)
    assert "features" not in stages(with_data(features="online"))
    answered = stages(with_data(answers="given", source="recorded", path="x"))
    assert answered["features"].disk == 0 and answered["answers"].seconds == 0 and answered["features"].seconds > 0


def test_time_follows_from_the_slower_of_reading_and_multiplying():
    # 100 tokens, 4 a step, which multiplies 4 x 1952 weights at 35 % of 1e4/s; 60 prompt tokens before
    assert stages()["answers"].seconds == pytest.approx((100 / 4 * 4 + 60) * 1952 / 3500)
    reading = DeviceRates(1e4, 1e12, "")
    assert stages(rates=reading)["answers"].seconds == pytest.approx(25 * (3904 + 4 * 16 * 32) / 6000)
    # 10 steps x 200 tokens x 3 positions x (forward and twice backward) x 1296 weights; 2 validations of 2 x 16 tokens
    assert stages()["training"].seconds == pytest.approx((10 * 200 * 3 * 3 * 1296 + 2 * 32 * 3 * 1296) / 3500)
    online = stages(with_data(features="online"))["training"].seconds - stages()["training"].seconds
    assert online == pytest.approx((10 * 200 + 2 * 32) * 1952 / 3500)
    assert stages()["decoding"].seconds == pytest.approx(2 * 7 * 3 * 3904 / 6000)


def test_memory_is_the_sum_of_what_is_held():
    states = 100 * 4 * (4 * 8 + 3 * (8 * 8 + 3 * 16))
    assert stages()["training"].memory == 3904 + 16 * 1296 + states + 4 * 3 * 5 * 50
    assert stages()["answers"].memory == 3904 + 4 * 16 * 32
    frozen = replace(CONFIG, drafter=Eagle3DrafterConfig(draft_vocab_size=50, head="target"))
    assert stages()["training"].memory - stages(frozen)["training"].memory == 16 * 400


def test_prepare_data_neither_trains_nor_decodes():
    assert [*stages(PrepareDataConfig(data=CONFIG.data))] == ["answers", "features"]


def test_disk_is_fullest_where_a_stage_holds_most():
    parts = [Stage("a", 0, "", lasting=5), Stage("b", 0, "", disk=10, lasting=10), Stage("c", 0, "", disk=1, lasting=1)]
    assert peak_disk(parts) == 25


def rough(cfg: PrepareDataConfig, number_bytes: int, devices: Devices = SINGLE_DEVICE) -> list[Stage]:
    return estimate_stages(cfg, SHAPE, SLOW, number_bytes, assumed_workload(cfg), devices)


def fitter(room: Room, devices: Devices = SINGLE_DEVICE, number_bytes: int = 2, **options: object) -> Fitter:
    devices = replace(devices, memory=room.memory)
    return Fitter(lambda cfg, size: rough(cfg, size, devices), SHAPE, number_bytes, devices, room, **options)


def search(room: Room, cfg: PrepareDataConfig = CONFIG, **options: object) -> dict[str, object]:
    """Settings with which a command fits, and not without them."""
    assert fitter(room, **options).misfits(cfg, {})
    settings, left = fitter(room, **options).search(cfg)
    assert left == [] and fitter(room, **options).misfits(cfg, settings) == []
    return settings


def test_what_fits_needs_no_settings():
    assert fitter(ROOMY).misfits(CONFIG, {}) == []


def test_features_that_do_not_fit_on_disk_are_computed_at_every_step():
    assert search(Room(1e12, 30000)) == {"data.features": "online"}
    settings = search(Room(1e12, peak_disk(rough(with_data(features="online"), 2)) - 1))
    assert settings == {"data.features": "online", "data.num_train": 4}


def test_existing_answers_keep_their_number():
    room = Room(1e12, peak_disk(rough(with_data(features="online"), 2)) - 1)
    assert [misfit.what for misfit in fitter(room, answered=True).search(CONFIG)[1]] == ["disk"]


def test_a_batch_that_does_not_fit_is_cut_into_parts_of_the_same_sum():
    cfg = replace(CONFIG, trainer=replace(CONFIG.trainer, checkpoint_steps=True))
    needed = stages(cfg)["training"].memory
    assert search(Room(needed - 1000, 1e12), cfg) == {"trainer.tokens_per_batch": 50, "trainer.accumulate": 4}
    assert search(Room(stages()["training"].memory - 1, 1e12)) == {"trainer.checkpoint_steps": True}


def test_a_batch_holds_at_least_the_longest_text():
    tiny = replace(CONFIG, trainer=replace(CONFIG.trainer, tokens_per_batch=1))
    assert stages(tiny)["training"].memory == stages()["training"].memory - 84 * 4 * (4 * 8 + 3 * (8 * 8 + 3 * 16))


def test_all_that_does_not_fit_is_mended_by_one_command():
    cfg = with_data(batch_size=64, num_train=600)
    smallest = {"trainer.checkpoint_steps": True, "trainer.tokens_per_batch": 12, "drafter.head": "target"}
    memory = stages(with_settings(cfg, smallest), work=assumed_workload(cfg))["training"].memory
    settings = search(Room(memory, 200000), cfg)
    assert settings["drafter.head"] == "target" and settings["data.features"] == "online"
    assert settings["trainer.tokens_per_batch"] == 12 and settings["data.batch_size"] == 32


def test_the_start_of_an_expert_is_not_changed():
    auto = replace(CONFIG, drafter=Eagle3DrafterConfig(draft_vocab_size=50, init="auto"))
    smallest = {"trainer.checkpoint_steps": True, "trainer.tokens_per_batch": 1}
    room = Room(stages(with_settings(auto, smallest))["training"].memory - 1, 1e12)
    assert "drafter.head" in search(room, CONFIG)
    assert [misfit.what for misfit in fitter(room).search(auto)[1]] == ["training"]


def test_weights_that_do_not_fit_hide_what_follows_from_them():
    room = Room(3000, 1e12)
    assert [misfit.what for misfit in fitter(room).misfits(CONFIG, {})] == ["the target's weights"]
    assert fitter(room).search(CONFIG)[1]  # not even spread over devices: the drafter does not fit
    assert search(Room(7000, 1e12), PrepareDataConfig(data=CONFIG.data), number_bytes=4) == {"target.dtype": "bfloat16"}
    assert search(Room(3800, 1e12), PrepareDataConfig(data=replace(CONFIG.data, batch_size=1)))["target.device_map"]
    (misfit,) = fitter(Room(3000, 1e12), Devices(host=True)).search(CONFIG)[1]
    assert (
        misfit.remedy == "a device with more memory" and str(misfit) == "memory of the target's weights: 0.0 MiB needed"
    )


def test_memory_is_that_of_the_longest_prompt_that_is_read():
    long = with_data(max_prompt_tokens=500)
    work = assumed_workload(long)
    assert work.prompts["train"] == [128] * 6 and work.longest_prompt == 500
    assert stages(long, work=work)["answers"].memory == 3904 + 4 * 510 * 32


def test_processes_on_a_cpu_share_its_memory_and_gpus_do_not():
    two = Devices(local=2, total=4, host=True)
    single, double = stages(devices=Devices(host=True)), stages(devices=two)
    assert double["training"].memory == 2 * single["training"].memory
    assert double["answers"].memory == single["answers"].memory + 3904  # of the process that waits
    assert double["decoding"] == single["decoding"]
    assert single["decoding"].memory == stages()["decoding"].memory + 4 * 1952  # the check in single precision
    assert stages(devices=replace(two, host=False)) == stages()


def test_fsdp_shares_out_what_adamw_holds():
    cfg = replace(CONFIG, trainer=replace(CONFIG.trainer, strategy="fsdp", accumulate=8))
    saved = stages(cfg)["training"].memory - stages(cfg, devices=Devices(8, 8))["training"].memory
    assert saved == (16 - 8 - 16 / 8) * 1296
    small = replace(CONFIG, trainer=replace(cfg.trainer, checkpoint_steps=True, strategy="auto", tokens_per_batch=16))
    room = Room(stages(small)["training"].memory - 1, 1e12)
    assert search(room, small, devices=Devices(8, 8)) == {"trainer.strategy": "fsdp"}


def test_an_expert_trains_its_adapter_alone():
    lora = replace(CONFIG, drafter=replace(CONFIG.drafter, tuning="lora", init="general"))
    # rank 16; fc: 24 + 8, q: 16 + 8, k, v: 16 + 4, o: 8 + 8, three of 8 + 16, a head of 8 + 50
    trained = 16 * (32 + 24 + 2 * 20 + 16 + 3 * 24 + 58)
    full, expert = stages()["training"], stages(lora)["training"]
    assert expert.trained == trained and expert.lasting == 2 * trained
    assert full.memory - expert.memory == 16 * full.trained - 16 * trained - 4 * full.trained


def test_a_spread_target_leaves_a_share_of_the_device_free_and_is_not_decoded_with():
    spread = replace(CONFIG, target=replace(CONFIG.target, device_map="auto"))
    plan = stages(spread, devices=Devices(memory=1000))
    assert plan["answers"].memory == 800 + 4 * 16 * 32 and "decoding" not in plan


def test_measured_stages_change_by_the_smaller_of_two_estimates():
    measured = [
        Stage("start", 1, "", memory=7),
        Stage("training", 1, "", memory=1e6),
        Stage("decoding", 1, "", memory=9),
    ]
    estimate = scaled(measured, rough, CONFIG, 2)
    assert estimate(CONFIG, 2) == measured
    smaller = with_settings(CONFIG, {"trainer.tokens_per_batch": 50})
    saved = stages()["training"].memory - stages(smaller)["training"].memory
    assert estimate(smaller, 2)[1].memory == 1e6 - saved  # not the same share of a peak that is far larger
    little = [replace(measured[1], memory=saved / 2)]
    share = stages(smaller)["training"].memory / stages()["training"].memory
    assert scaled(little, rough, CONFIG, 2)(smaller, 2)[0].memory == pytest.approx(saved / 2 * share)
    features = scaled([Stage("features", 1, "", disk=6, lasting=6)], rough, CONFIG, 2)
    assert features(with_data(features="online"), 2) == []
    half = features(with_data(num_train=2), 2)[0]
    assert half.disk == half.lasting == pytest.approx(6 * 4 / 8)


def test_assumptions_are_named():
    work = assumed_workload(CONFIG)
    assert work.num_answers == 10 and work.answer_tokens == 10 and "assumed" in work.source


def test_the_device_is_timed():
    rates = measure_device(torch.device("cpu"), torch.float32, side=64, repeats=2)
    assert rates.bytes_per_s > 0 and rates.multiplications_per_s > 0 and "timed just now" in rates.source


@pytest.mark.parametrize(("seconds", "words"), [(5, "5 s"), (150, "2.5 min"), (9000, "2.5 h"), (3 * 86400, "3.0 days")])
def test_durations_are_readable(seconds, words):
    assert duration(seconds) == words


def published_estimates(command: str, config: Path) -> dict[str, str]:
    """The figures of a row of the results page.  command: `drafterforge plan ...`."""
    planned = read_config("plan", command.split()[2:])
    device, shape = planned.device, ModelShape.read(config)
    rates = DeviceRates(device.bandwidth_gb_s * 1e9, device.tflops * 1e12 / 2, "")
    plan = estimate_stages(planned.config, shape, rates, 2, assumed_workload(planned.config))
    estimates = {"target": f"{shape.num_weights / 1e6:,.0f} M weights, {size(2 * shape.num_weights)}"}
    for stage in plan:
        estimates |= {stage.name: duration(stage.seconds), f"{stage.name}, memory": size(stage.memory)}
    return estimates | {"disk": size(peak_disk(plan))}


def test_the_estimates_of_the_results_page_are_those_of_plan(tmp_path):
    report = json.loads((Path(__file__).parents[2] / "docs" / "reports" / "plan.json").read_text())
    for row in report["rows"]:
        (tmp_path / "config.json").write_text(json.dumps(row["config"]))
        assert row["estimates"] == published_estimates(row["command"], tmp_path / "config.json")


def test_answers_of_an_8b_target_with_full_context_need_a_smaller_batch_on_an_h100(tmp_path):
    report = json.loads((Path(__file__).parents[2] / "docs" / "reports" / "plan.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(report["rows"][0]["config"]))
    typed = "train-drafter domain=general target=llama3.1-8b size=8b experiment=public_8b data=ultrachat device=h100"
    planned, shape = (
        read_config("plan", [*typed.split(), "data.batch_size=128"]),
        ModelShape.read(tmp_path / "config.json"),
    )
    room = Room(planned.device.memory_gb * 1e9, 1e15)

    def estimate(cfg: TrainDrafterConfig, number_bytes: int) -> list[Stage]:
        return estimate_stages(cfg, shape, SLOW, number_bytes, assumed_workload(cfg))

    eight_b = Fitter(estimate, shape, 2, SINGLE_DEVICE, room)
    (misfit,) = eight_b.misfits(planned.config, {})
    assert str(misfit) == "memory of answers: 79.0 GiB needed"
    assert eight_b.search(planned.config) == ({"data.batch_size": 64}, [])
    assert eight_b.misfits(read_config("plan", typed.split()).config, {}) == []


def test_the_trial_of_the_disk_waits_until_the_block_is_written(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(stage_trials.os, "fsync", lambda descriptor: written.append(os.fstat(descriptor).st_size))
    monkeypatch.setattr(stage_trials, "BLOCK", 4096)
    assert stage_trials.disk_seconds(tmp_path) > 0 and written == [4096]
