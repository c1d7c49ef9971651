"""A plan is arithmetic on the target's config and the device's rates; every figure here is worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from drafterforge.config.commands import PlanConfig
from drafterforge.config.data import DataConfig
from drafterforge.config.trainer import TrainerConfig
from drafterforge.errors import ArtifactError
from drafterforge.evaluation.planning import (
    DeviceRates,
    RecordedRates,
    duration,
    feature_bytes,
    make_plan,
    measure_device,
    recorded_rates,
    size,
)
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
DATA = DataConfig(num_train=6, num_val=2, num_test=2, max_new_tokens=10, batch_size=4)
TRAINER = TrainerConfig(
    max_steps=10, tokens_per_batch=100, accumulate=2, ttt_steps=3, checkpoint_steps=False, loss_chunk=5
)
CONFIG = PlanConfig(
    data=DATA, trainer=TRAINER, num_domains=2, prompt_tokens=6, draft_vocab_size=50, batch_size=2, context=20
)
SLOW = DeviceRates(bytes_per_s=1e4, multiplications_per_s=1e4, source="toy rates")


def lines(cfg: PlanConfig = CONFIG, rates: DeviceRates = SLOW, recorded: RecordedRates = RecordedRates()) -> dict:  # noqa: B008
    return {line.quantity: line for line in make_plan(cfg, SHAPE, rates, 2, recorded)}


def test_a_config_json_is_enough(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TOY))
    assert ModelShape.read(path) == SHAPE
    path.write_text(json.dumps({"text_config": TOY | {"head_dim": 3}, "tie_word_embeddings": False}))
    assert (ModelShape.read(path).head_dim, ModelShape.read(path).tied) == (3, False)
    path.write_text(json.dumps(TOY | {"num_attention_heads": "four"}))
    with pytest.raises(ArtifactError, match="has no num_attention_heads"):
        ModelShape.read(path)


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


def test_disk_is_bytes_a_token_times_tokens():
    assert feature_bytes(8) == 68
    assert lines()["features on disk"].value == size(2 * 8 * 16 * 68)  # 2 domains, 8 answers of 10 + 6 tokens
    online = PlanConfig(data=DataConfig(features="online"), num_domains=2)
    assert lines(online)["features on disk"].value.startswith("none")


def test_time_follows_from_the_slower_of_reading_and_multiplying():
    # 20 answers of 10 tokens; a step multiplies 4 x 1952 weights at 35 % of 1e4/s, and reads far sooner
    assert lines()["answering"].value == f"{duration(200 / (4 / (4 * 1952 / 3500)))} at 2 tokens/s"
    reading = DeviceRates(1e4, 1e12, "")
    step_s = (1952 * 2 + 4 * 16 * 32) / 6000
    assert lines(rates=reading)["answering"].value == f"{duration(200 * step_s / 4)} at {4 / step_s:,.0f} tokens/s"
    # 2 drafters x 10 steps x 200 tokens x 3 positions x (forward and twice backward) x 1296 weights
    assert lines()["training, time"].value == duration(2 * 10 * 200 * 3 * 3 * 1296 / 3500)
    assert lines()["plain decoding"].value == f"{6000 / 3904:,.1f} tokens/s"


def test_memory_is_the_sum_of_what_is_held():
    states = 100 * (4 * 8 + 3 * (8 * 8 + 3 * 16))
    assert lines()["training, memory"].value == size(16 * 1296 + 4 * (states + 3 * 5 * 50) + 3904)
    caches = 2 * 20 * 32 + 2 * 2 * 20 * 16
    assert lines()["serving, memory"].value == size(3904 + 2 * 1296 * 2 + caches)
    assert lines()["bundle"].value == size(2 * 1296 * 2)


def test_what_was_measured_comes_before_what_is_derived():
    recorded = RecordedRates(answer_tokens_per_s=50.0, answers_source="measured", token_s=0.1, token_source="profile")
    plan = lines(recorded=recorded)
    assert plan["answering"].value == "4 s at 50 tokens/s" and plan["answering"].derivation.endswith("measured")
    assert (plan["plain decoding"].value, plan["plain decoding"].derivation) == ("10.0 tokens/s", "profile")


def test_runs_without_artifacts_know_no_rate(tmp_path):
    assert recorded_rates(str(tmp_path), "toy", "cpu") == RecordedRates()


def test_the_device_is_timed():
    rates = measure_device(torch.device("cpu"), torch.float32, side=64, repeats=2)
    assert rates.bytes_per_s > 0 and rates.multiplications_per_s > 0 and "timed just now" in rates.source


def test_the_estimates_of_the_results_page_are_those_of_plan(tmp_path):
    report = json.loads((Path(__file__).parents[2] / "docs" / "reports" / "plan.json").read_text())
    rates = DeviceRates(report["bandwidth_gb_s"] * 1e9, report["tflops"] * 1e12 / 2, "")
    for row in report["rows"]:
        (tmp_path / "config.json").write_text(json.dumps(row["config"]))
        plan = make_plan(PlanConfig(), ModelShape.read(tmp_path / "config.json"), rates, 2, RecordedRates())
        assert row["estimates"] == {line.quantity: line.value for line in plan}


@pytest.mark.parametrize(("seconds", "words"), [(5, "5 s"), (150, "2.5 min"), (9000, "2.5 h"), (3 * 86400, "3.0 days")])
def test_durations_are_readable(seconds, words):
    assert duration(seconds) == words
