"""The figures of `/metrics` agree with the answers of the clients."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from drafterforge.runtime.engine import Engine
from tests.server.conftest import HTTP, MODEL, SHAPE, pool_of, serving

pytestmark = pytest.mark.slow  # whole programs

NAMES = ("one", "two", "retrieval")


def test_figures_agree_with_the_usage_and_with_the_engine(speaking):
    with serving(Engine(speaking, pool_of(speaking), SHAPE)) as up:
        used = [up.ask(prompt=f"request {number}", max_tokens=6 + number).json()["usage"] for number in range(3)]
        list(up.client.completions.create(model=MODEL, prompt="streamed", max_tokens=9, temperature=0, stream=True))
        refused = up.ask(max_tokens=0)
        assert refused.status_code == 400
        tokens = sum(usage["completion_tokens"] for usage in used) + 9
        assert up.figure("generated_tokens_total") == tokens
        assert up.figure("prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in used) + len("streamed")
        assert up.figure("requests_total", status="200") == 4 and up.figure("requests_total", status="400") == 1
        assert up.figure("answers_total", reason="length") == 4
        cycles = sum(up.figure("cycles_total", drafter=name) for name in NAMES)
        assert cycles == up.figure("cycles_total") == up.figure("accept_length_count")
        assert up.figure("accept_length_sum") == tokens - 4  # the first token of an answer comes from its prefill
        assert 0 <= up.figure("accepted_tokens_total") <= tokens - 4
        assert sum(up.figure("selector_weight", drafter=name) for name in NAMES) == pytest.approx(1)
        for step in ("verify", "select", "schedule", "host"):
            assert up.figure("step_seconds_count", step=step) == cycles  # one answer at a time
        assert up.figure("step_seconds_count", step="prefill") == 4
        assert up.figure("step_seconds_sum", step="verify") > 0
        for name in ("first_token_seconds", "answer_seconds"):
            assert up.figure(f"{name}_count") == 4
        assert up.figure("first_token_seconds_sum") < up.figure("answer_seconds_sum")


def test_a_step_of_several_answers_counts_once(speaking):
    with serving(Engine(speaking)) as up:
        answer = up.ask(n=3, max_tokens=5)
        assert answer.json()["usage"]["completion_tokens"] == 15
        assert up.figure("cycles_total", drafter="none") == 12 == up.figure("accept_length_sum")
        assert 4 <= up.figure("step_seconds_count", step="verify") <= 5  # two were admitted before the first cycle


def test_every_family_has_its_help_and_belongs_to_this_server(shared, speaking):
    with serving(Engine(speaking)) as up:
        response = HTTP.get(f"{up.url}/metrics")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    assert all(name.startswith("drafterforge_") and family.documentation for name, family in families.items())
    assert families["drafterforge_generated_tokens"].samples[0].value == 0
    assert response.headers["Content-Type"].startswith("text/plain")
