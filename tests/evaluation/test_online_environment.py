"""Answers decoded live as an environment give the cycles of replay."""

from __future__ import annotations

import numpy as np
import pytest

from drafterforge.evaluation.online_environment import OnlineEnvironment, OnlineScheduler
from drafterforge.replay.environment import ShapeEnvironment
from drafterforge.replay.record import record_answer
from drafterforge.replay.scheduler_actions import observations_of
from drafterforge.replay.table import build_table
from drafterforge.replay.trace import TraceSpec, join
from drafterforge.runtime.engine import Engine
from drafterforge.runtime.pool import Pool
from drafterforge.schedulers.actions import ActionGrid
from drafterforge.schedulers.nets import ActorCritic
from drafterforge.training.ppo_fit import fit_ppo
from drafterforge.training.ppo_module import PPOConfig, PPOModule
from tests.models import tiny_target
from tests.replay.builders import profile
from tests.runtime.drafters import lora_drafters

GRID = ActionGrid("tiny", (1, 2, 4, 8), (1, 2), (1, 2))
PROMPTS = [[3, 14, 15, 9, 26, 5], [4] * 17]
COUNT, PARTS = 18, ["features", "children", "length"]


@pytest.fixture
def opened():
    """A live environment and one of replay, of the same prompts."""
    target = tiny_target(eos_token_id=None)
    drafter = lora_drafters(target, 1)[0]
    answers = Engine(target).generate(PROMPTS, COUNT)
    spec = TraceSpec(("a",), (1, 2), 2, 2)
    recorded = [record_answer(target, Pool({"a": drafter}), answer, spec, max_new_tokens=COUNT) for answer in answers]
    traces = join(spec, recorded, ["x"] * 2, ["train"] * 2)
    observations = observations_of(traces, 0, PARTS)
    replayed = ShapeEnvironment(build_table(traces, GRID, 0, profile()), observations, 1, hold_cycles=3)
    live = OnlineEnvironment(
        target, ("a", drafter), OnlineScheduler(GRID, PARTS), PROMPTS, observations.shape[1], COUNT, hold_cycles=3
    )
    yield live, replayed
    live.close()
    assert not live.thread.is_alive()


def test_live_steps_have_the_observations_tokens_and_ends_of_replayed_steps(opened):
    live, replayed = opened
    draw, (seen, mask) = np.random.default_rng(0), live.reset()
    replayed.reset()
    ends = 0
    for _ in range(60):
        replayed.rows[:] = replayed.table.starts[live.answering] + live.root.position - len(PROMPTS[live.answering])
        np.testing.assert_allclose(seen, replayed.observations(), atol=2e-3)
        assert mask.all()
        action = draw.integers(len(GRID), size=1)
        before = len(live.cycles)
        step, expected = live.step(action), replayed.step(action)
        assert (step.tokens, step.cycles, step.dones) == (expected.tokens, expected.cycles, expected.dones)
        measured = [cycle.tokens / cycle.seconds * 0.01 for cycle in live.cycles[before:]]
        assert step.rewards[0] == pytest.approx(np.mean(measured), rel=1e-5) and step.seconds[0] > 0
        seen, ends = step.observations, ends + int(step.dones[0])
    assert ends > 4 and {cycle.prompt for cycle in live.cycles} == {0, 1}


def test_ppo_trains_on_it(opened, tmp_path):
    live, _ = opened
    net = ActorCritic(live.observation_size, live.num_actions, (4,), (4,))
    config = PPOConfig(total_cycles=60, num_steps=8, objective="reward")
    curve = fit_ppo(PPOModule(net, live, config), tmp_path, 0, progress=False)
    assert len(live.cycles) >= 60 and curve[-1]["cycles"] == len(live.cycles)


def test_an_error_of_the_engine_is_raised_where_the_environment_is_used(opened, monkeypatch):
    live, _ = opened

    def fail(*_):
        raise ValueError("a fault of the engine")

    live.reset()
    monkeypatch.setattr(live.engine, "generate", fail)
    with pytest.raises(ValueError, match="a fault of the engine"):
        for _ in range(30):
            live.step(np.zeros(1, dtype=np.int64))
